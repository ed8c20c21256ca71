"""Only the command that is asked for is prepared, and it is the one that the whole program has."""

import pytest
import typer

from sfumato.cli.app import _asked_for, app, whole_app

WHOLE = typer.main.get_command(whole_app())


@pytest.mark.parametrize("name", WHOLE.commands)
def test_a_command_is_found_alone_with_its_options(name):
    alone = typer.main.get_command(_asked_for([name, "--help"]))
    assert list(alone.commands) == [name]
    assert options(alone.commands[name]) == options(WHOLE.commands[name])


@pytest.mark.parametrize("words", [[], ["--help"], ["trian"], ["-h", "train"]])
def test_whoever_names_no_command_gets_all(words):
    assert _asked_for(words) is app


def options(command):
    inside = getattr(command, "commands", {})
    return [each.opts for each in command.params], {name: options(each) for name, each in inside.items()}
