"""Every code block of the README and the docs runs as it stands, page by page, each page in an empty folder.

python   runs, in order, in one namespace; what follows `#` after a print is what it prints
sh       runs command by command; `# exit code 3` at the end of a line says how it must end
toml     is written to the file that its first line names, as in `# people.toml`
text     right after a block that ran, is what that printed, … standing for anything
sample   the same, from one run among many: any number may stand for a number
none     is a drawing, and may hold no command

A block that must not run has `<!-- not run: the reason -->` on the line before it; its commands must exist all
the same.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer

from sfumato.cli.app import whole_app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
COMMANDS = typer.main.get_command(whole_app())
GENERATED = {ROOT / "docs" / "reference" / "cli.md", ROOT / "docs" / "audit-sabotage.md"}
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted(set((ROOT / "docs").rglob("*.md")) - GENERATED)]
MOST_SKIPPED = 11
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<language>[a-z]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NUMBER = r"-?\d[\d.,]*(?<=\d)(?:e[-+]?\d+)?"
SHELL_WORDS = {"|", "<", ">", "&&"}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    why_not_run: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, those joined that end in a backslash."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks_of(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    return [
        Block(page, source.count("\n", 0, found.start("text")), found["language"], found["text"], found["why"])
        for found in FENCE.finditer(source)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
WITH_CODE = [page for page in PAGES if any(block.language in ("python", "sh") for block in blocks_of(page))]


# Running


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_every_block_runs(page, tmp_path, monkeypatch, capsys, sfumato):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "112")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    namespace = {"__name__": "__main__"}
    printed = ""
    with torch.random.fork_rng():
        for block in blocks_of(page):
            if block.why_not_run is None:
                printed = run_block(block, namespace, printed, capsys, sfumato)


def run_block(block, namespace, printed, capsys, sfumato):
    """What the block printed, or, for a block that only shows text, what the one before it did."""
    if block.language == "python":
        source = "\n" * block.line + block.text  # so that an error names the page's own line
        exec(compile(source, str(block.page), "exec"), namespace)
        printed = capsys.readouterr().out
        check_printed(
            block, "…".join(re.findall(r"^ *print\(.*\)  # (.+)$", block.text, re.MULTILINE)), printed
        )
    elif block.language == "sh":
        printed = "".join(run_command(block, command, sfumato) for command in block.commands)
    elif block.language == "toml":
        Path(re.match(r"# (\S+)", block.text)[1]).write_text(block.text, encoding="utf-8")
    elif block.language == "text":
        check_printed(block, block.text, printed)
    elif block.language == "sample":
        check_printed(block, re.sub(NUMBER, "0", block.text), re.sub(NUMBER, "0", printed))
    return printed


def run_command(block, command, sfumato):
    words = shlex.split(command, comments=True)
    if re.match(r"(\w+=\w+ )*sfumato ", command) and not SHELL_WORDS & set(words):
        start = words.index("sfumato")
        with pytest.MonkeyPatch.context() as patch:  # a process of its own would load torch anew
            for setting in words[:start]:
                patch.setenv(*setting.split("="))
            code, out, err = sfumato(*words[start + 1 :])
    else:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=300)
        code, out, err = done.returncode, done.stdout, done.stderr
    expected = re.search(r"# exit code (\d)\s*$", command)
    assert code == (int(expected[1]) if expected else 0), f"{block}: {command}\n{out}{err}"
    return out + err


def check_printed(block, expected, printed):
    assert matches(expected, printed), f"{block}: expected\n{expected}\ngot\n{printed}"


def matches(expected, printed):
    """Whether the text holds what is expected, with any white space, and anything for an ellipsis."""
    pattern = r"\s+".join(re.escape(word).replace("…", ".*?") for word in expected.split())
    return re.search(pattern, " ".join(printed.split()), re.DOTALL) is not None


def test_the_check_of_outputs_can_fail():
    assert matches("spent 0.5…, left …", "so far\n  spent 0.500,  left 2.5\n")
    assert not matches("spent 0.6…, left …", "spent 0.500, left 2.5")


# What is shown


def test_blocks_say_what_they_are():
    odd = [
        str(block) for block in BLOCKS if block.language not in ("python", "sh", "toml", "text", "sample", "")
    ]
    assert odd == []
    fences = sum(page.read_text(encoding="utf-8").count("\n```") for page in PAGES)
    assert fences == 2 * len(BLOCKS)  # no block in a list or with options escapes the others' checks


def test_no_command_hides_in_a_drawing():
    unlabelled = [block for block in BLOCKS if block.language == ""]
    assert [str(block) for block in unlabelled if re.search(r"^\s*(sfumato|make|pip) ", block.text, re.M)] == []


def test_few_blocks_do_not_run_and_python_among_them_parses():
    skipped = [block for block in BLOCKS if block.why_not_run is not None]
    assert len(skipped) <= MOST_SKIPPED
    for block in skipped:
        if block.language == "python":
            compile(block.text, str(block), "exec")


def test_every_command_and_option_that_is_shown_exists():
    strange = []
    for page in (*PAGES, *GENERATED):
        for command in commands_shown(page):
            strange += [f"{name(page)}: {command}: {problem}" for problem in problems_of(command)]
    assert strange == []


def commands_shown(page: Path) -> Iterator[str]:
    source = page.read_text(encoding="utf-8")
    yield from re.findall(r"(?<!`)`(sfumato [a-z][^`]*)`(?!`)", source)
    for block in blocks_of(page):
        yield from (line for line in block.commands if line.startswith("sfumato "))


def problems_of(command: str) -> list[str]:
    """Commands and options that there are not."""
    words = shlex.split(command.replace("…", ""), comments=True)[1:]
    found, known = COMMANDS, {"--help", "-h"}
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0)]
    if found.name == "sfumato" and words and words[0] not in known:
        return [f"there is no command {words[0]}"]
    for one in (found, *getattr(found, "commands", {}).values()):  # a group may stand for one of its commands
        known |= {option for parameter in one.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return [f"there is no option {word}" for word in words if word.startswith("--") and word not in known]


def test_the_check_of_commands_can_fail():
    assert problems_of("sfumato trian --data mnist") == ["there is no command trian"]
    assert problems_of("sfumato train --dat mnist") == ["there is no option --dat"]
    assert problems_of("sfumato query p.toml 'SELECT COUNT(*) FROM p' --epsilon 0.1") == []


def test_the_readme_starts_with_the_two_commands():
    source = README.read_text(encoding="utf-8")
    first = source[: source.index("## First answer")]
    assert "make demo" in first
    assert "make test" in first


def test_pictures_and_pages_that_the_readme_points_to_exist():
    targets = re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
