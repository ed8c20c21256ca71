"""A town, an epidemic, and tests for those whose private risk score is highest."""

from __future__ import annotations

from typing import Any

from sfumato.demo.context import Scene
from sfumato.randomness import SecretStream
from sfumato.reproduce.tracing import DELTA
from sfumato.tracing import Campaign, Release, run
from sfumato.tracing.settings import SETTINGS

_SIMULATOR, _SEED, _EPSILON = "seir", 1, 1.0
_CASES: tuple[tuple[str, str, float | None], ...] = (
    ("none", "no tests", None),
    ("traditional", "tests for contacts of the sick", _EPSILON),
    ("dpfn", "tests by risk score", None),
    ("dpfn", "tests by risk score", _EPSILON),
)


def epidemic(scene: Scene) -> dict[str, Any]:
    """Prevalence by day without tests, with traditional tracing, and with scores, exact and private."""
    curves = []
    for number, (method, name, epsilon) in enumerate(_CASES, start=1):
        curves.append({"method": method, "name": name, "epsilon": epsilon, **_campaign(scene, method, epsilon)})
        scene.progress(number / len(_CASES))
    return {
        "people": scene.size.town,
        "days": scene.size.days,
        "delta": DELTA,
        "unit": "one contact-day message",
        "curves": curves,
    }


def _campaign(scene: Scene, method: str, epsilon: float | None) -> dict[str, Any]:
    """One town's epidemic; an ε is for a message's whole life, and what that comes to for a person is told."""
    setting = SETTINGS[_SIMULATOR]
    release = Release(method=method)
    if epsilon is not None:
        release = Release.calibrated(
            method=method, epsilon=epsilon, delta=DELTA, disease=setting.disease, span="lifetime"
        )
    plan = Campaign(
        release=release, disease=setting.disease, days=scene.size.days, test_fraction=setting.test_fraction
    )
    town = setting.make(scene.size.town, scene.size.days, _SEED)
    outcome = run(plan, town, SecretStream(), seed=_SEED)
    price = release.price(setting.disease, contacts_per_day=outcome.contacts_per_day).epsilons(DELTA)
    return {
        "peak": outcome.peak_infection_rate,
        "prevalence": list(outcome.prevalence),
        "epsilon_lifetime": None if epsilon is None else price["lifetime"],
        "epsilon_person": None if epsilon is None else price["person"],
    }
