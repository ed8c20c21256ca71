"""A town, an epidemic, and tests for those whose private risk score is highest."""

from __future__ import annotations

from sfumato.randomness import SecretStream
from sfumato.runs import EpidemicCurve, Tracing
from sfumato_lab.demo.context import StageContext
from sfumato_lab.reproduce.tracing import DELTA
from sfumato_lab.tracing import UNIT, Campaign, Release, run
from sfumato_lab.tracing.settings import SETTINGS

_SIMULATOR, _SEED, _EPSILON = "seir", 1, 1.0
_CASES: tuple[tuple[str, float | None], ...] = (
    ("none", None),
    ("traditional", _EPSILON),
    ("dpfn", None),
    ("dpfn", _EPSILON),
)


def epidemic(context: StageContext) -> Tracing:
    """Prevalence by day without tests, with traditional tracing, and with scores, exact and private."""
    curves = []
    for number, (method, epsilon) in enumerate(_CASES, start=1):
        curves.append(_campaign(context, method, epsilon))
        context.progress(number / len(_CASES))
    return Tracing(
        people=context.size.town, days=context.size.days, delta=DELTA, unit=UNIT, curves=tuple(curves)
    )


def _campaign(context: StageContext, method: str, epsilon: float | None) -> EpidemicCurve:
    """One town's epidemic; an ε is for a message's whole life; a person's is stated beside it."""
    setting = SETTINGS[_SIMULATOR]
    release = Release(method=method)
    if epsilon is not None:
        release = Release.calibrated(
            method=method, epsilon=epsilon, delta=DELTA, disease=setting.disease, span="lifetime"
        )
    plan = Campaign(
        release=release, disease=setting.disease, days=context.size.days, test_fraction=setting.test_fraction
    )
    town = setting.make(context.size.town, context.size.days, _SEED)
    outcome = run(plan, town, SecretStream(), seed=_SEED)
    return outcome.curve(release, setting.disease, epsilon=epsilon, delta=DELTA)
