"""The README's Python runs as it stands, and the commands it shows exist."""

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert 0.9 < float(capsys.readouterr().out) <= 1


def test_commands_exist():
    import typer

    from sfumato.cli.app import app

    known = typer.main.get_command(app).commands
    shown = set(re.findall(r"(?:^|`)sfumato (\w+)", README, flags=re.MULTILINE))
    assert shown
    assert shown <= set(known)


def test_starts_with_the_two_commands():
    first = README[: README.index("## ")]
    assert "make demo" in first
    assert "make test" in first


def test_pictures_exist():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[2] / path).exists()
