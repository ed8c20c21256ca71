"""An option that other tools have is answered with ours."""

import click
import pytest
import typer
from typer.testing import CliRunner

from sfumato.cli.app import _OTHER_WORDS, app

MEANT = [
    ("train", "--lr", "--learning-rate"),
    ("train", "--eps", "--epsilon"),
    ("train", "--batch-size", "--batch"),
    ("train", "--batch_size", "--batch"),
    ("train", "--max-grad-norm", "--clip-norm"),
    ("train", "--output-dir", "--out"),
    ("train", "--gpu", "--device"),
    ("ledger create", "--eps", "--epsilon"),  # in a group
    ("query", "--eps", "--epsilon"),  # in a group with a command by default
    ("sigma", "--q", "--sample-rate"),
    ("epsilon", "--sigma", "--noise-multiplier"),
    ("trace", "--people", "--agents"),
]


@pytest.mark.parametrize(("command", "word", "ours"), MEANT)
def test_a_usual_word_is_answered_with_our_option(command: str, word: str, ours: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), word, "1"])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert f"No such option '{word}'. Did you mean {ours}" in said


def test_misspelt_options_are_answered_by_click() -> None:
    result = CliRunner().invoke(app, ["train", "--learnin-grate", "1"])
    assert "'--learning-rate'" in result.output


def test_words_that_mean_nothing_get_no_suggestion() -> None:
    assert "Did you mean" not in CliRunner().invoke(app, ["epsilon", "--zzzzzz", "1"]).output


def test_only_options_that_there_are_are_suggested() -> None:
    def options(command: click.Command) -> set[str]:
        own = {name for each in command.params for name in each.opts}
        return own.union(*map(options, getattr(command, "commands", {}).values()))

    known = options(typer.main.get_command(app))
    assert {f"--{name}" for names in _OTHER_WORDS.values() for name in names} <= known
