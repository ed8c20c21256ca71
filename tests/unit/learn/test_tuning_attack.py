"""The search for settings under attack."""

from sfumato import accounting
from sfumato.learn import tuning


def test_the_claim_of_a_search_stands():
    assert not tuning.searches(searches=40).refuted


def test_a_search_with_a_hundredth_of_its_noise_is_found(monkeypatch):
    fitted = accounting.calibrate_selection
    monkeypatch.setattr(
        accounting, "calibrate_selection", lambda *given, **options: fitted(*given, **options) / 100
    )
    assert tuning.searches(epsilon=1.0, searches=120).refuted
