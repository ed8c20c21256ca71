"""Calls of the command line in this process."""

import json
import sys

import pytest

from sfumato.cli import main


@pytest.fixture
def sfumato(monkeypatch, capsys):
    """Call the command line in this process: (exit code, standard output, standard error)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["sfumato", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def sfumato_json(sfumato):
    """The one JSON object that a command prints."""

    def call(*words):
        code, out, err = sfumato(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return call
