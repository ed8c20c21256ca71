"""`sfumato epsilon` prices what can be priced, and says so of the rest."""

import pytest
from typer.testing import CliRunner

from sfumato.cli.app import app
from sfumato.errors import InvalidInput


@pytest.mark.parametrize("noise", ["1e-200", "0.04", "1e5", "1e160"])
@pytest.mark.parametrize("rate", ["1", "0.01"])
def test_noise_that_no_accountant_prices_gets_a_sentence(noise, rate):
    words = ["epsilon", "--noise-multiplier", noise, "--sample-rate", rate, "--delta", "1e-5"]
    with pytest.raises(InvalidInput, match=r"from 0\.05 to 10000"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("noise", ["0.05", "1e4"])
def test_both_ends_are_priced(noise):
    words = ["epsilon", "--noise-multiplier", noise, "--delta", "1e-5"]
    assert CliRunner().invoke(app, words).exit_code == 0


@pytest.mark.parametrize("command", ["epsilon", "sigma"])
def test_a_sample_rate_may_be_a_fraction(command):
    more = ["--noise-multiplier", "1.1"] if command == "epsilon" else ["--epsilon", "1"]
    words = [command, *more, "--steps", "10", "--delta", "1e-5", "--json"]
    fraction, number = (
        CliRunner().invoke(app, [*words, "--sample-rate", rate]) for rate in ("256/60000", repr(256 / 60000))
    )
    assert fraction.exit_code == 0
    assert fraction.output == number.output
    for wrong in ("256/0", "a/b", "1/2/3"):
        refused = CliRunner().invoke(app, [*words, "--sample-rate", wrong])
        assert refused.exit_code == 2
