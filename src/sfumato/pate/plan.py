"""The plan of a vote: queries and noise, priced before the first answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget, DpEvent, GaussianEvent, LaplaceEvent, calibrate, compose, repeat
from sfumato.accounting import epsilon as price
from sfumato.errors import InvalidInput
from sfumato.mechanisms import NoisyMax

MECHANISMS = ("laplace", "gnmax", "confident", "interactive")
_NEEDED = {
    "laplace": ("gamma",),
    "gnmax": ("sigma",),
    "confident": ("sigma", "sigma_threshold", "threshold", "answers"),
    "interactive": ("sigma", "sigma_threshold", "threshold", "answers"),
}
NOISE_SHARE = 0.3
ROUNDING = 1 + 2.0**-17  # of the sensitivity of a threshold test: its grid, and noise in whole grid steps


@dataclass(frozen=True, kw_only=True)
class VotePlan:
    """How labels are made of votes: mechanism, noise, and how much may be asked; all of it public.

    "laplace": argmaxⱼ(nⱼ + Lap(1/γ)). "gnmax": argmaxⱼ(nⱼ + N(0, σ²)). "confident": the same, but only if
    maxⱼ nⱼ + N(0, σ₁²) ≥ T. "interactive": only if maxⱼ(nⱼ − M·pⱼ) + N(0, σ₁²) ≥ T, where p are the student's
    probabilities and M the number of teachers: an answer that the student knows is not asked for twice.

    *Guarantees*: a record belongs to one teacher, so adding or removing it moves one vote from one class to
    another (or to none), on every query. Two counts move by 1: σ costs a Gaussian of noise multiplier σ/√2,
    γ costs two Laplace releases of multiplier 1/γ (all noised counts; the winner is post-processing). A maximum
    moves by 1: σ₁ costs multiplier σ₁. Charged are all `queries`, answered or not, and `answers` answers: both
    are fixed beforehand, and asking stops when either is used up. The relation is add/remove; a record that is
    *replaced*, id and all, moves two votes, and is priced by the ledger's conversion.

    Papernot et al. 2017, section 3.1 (laplace); 2018, sections 4.1 to 4.3 (the others).

    >>> plan = VotePlan(mechanism="confident", teachers=250, queries=640, answers=286, threshold=200,
    ...                 sigma_threshold=150, sigma=40)
    >>> round(plan.epsilon(1e-5), 2)
    2.54
    """

    mechanism: str  # "laplace", "gnmax", "confident" or "interactive"
    teachers: int  # how many vote
    queries: int  # how many may be asked
    classes: int = 10  # how many classes there are
    gamma: float | None = None  # γ of "laplace", the inverse scale of the noise
    sigma: float | None = None  # σ of the others, in votes
    sigma_threshold: float | None = None  # σ₁, the noise on the test whether to answer
    threshold: float | None = None  # T, how many votes must agree
    answers: int | None = None  # how many answers may be given; `queries` by default

    def __post_init__(self) -> None:
        _validate.one_of("mechanism", self.mechanism, MECHANISMS)
        _validate.integer("teachers", self.teachers, least=1)
        _validate.integer("queries", self.queries, least=1)
        _validate.integer("classes", self.classes, least=1)
        self._check_fields()
        for name in ("gamma", "sigma", "sigma_threshold"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        if self.threshold is not None:
            _validate.real("threshold", self.threshold)
        if self.answers is not None and _validate.integer("answers", self.answers) > self.queries:
            raise InvalidInput(
                f"expected answers <= queries={self.queries}, got answers={self.answers}; "
                "it is how many of the queries are answered at most"
            )
        self.winner()  # the mechanism checks its noise, before anything is spent

    def _check_fields(self) -> None:
        needed = _NEEDED[self.mechanism]
        for name in ("gamma", "sigma", "sigma_threshold", "threshold", "answers"):
            given = getattr(self, name) is not None
            if given != (name in needed):
                wanted = "to be given" if name in needed else "to be left out"
                raise InvalidInput(
                    f"expected {name} {wanted} for mechanism={self.mechanism!r}, got "
                    f"{name}={getattr(self, name)!r}; "
                    f"it takes {', '.join(needed)}"
                )

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        mechanism: str,
        teachers: int,
        queries: int,
        classes: int = 10,
        answers: int | None = None,
        threshold: float | None = None,
        threshold_noise: float = 3.0,
    ) -> VotePlan:
        """The plan with the least noise that costs at most (ε, δ); σ₁ is `threshold_noise` times σ."""

        def at(noise: float) -> VotePlan:
            return cls(
                mechanism=mechanism,
                teachers=teachers,
                queries=queries,
                classes=classes,
                answers=answers,
                threshold=threshold,
                gamma=1 / noise if mechanism == "laplace" else None,
                sigma=None if mechanism == "laplace" else noise,
                sigma_threshold=threshold_noise * noise if threshold is not None else None,
            )

        noise = calibrate(lambda value: at(value).event(), Budget(epsilon=epsilon, delta=delta), guess=40.0)
        return at(noise)

    @property
    def silent(self) -> bool:
        """Whether a query may go without an answer."""
        return self.answers is not None

    def winner(self) -> NoisyMax:
        """Return the mechanism that names the class with the most votes."""
        gaussian = self.gamma is None
        scale = self.sigma if self.gamma is None else 1 / self.gamma
        assert scale is not None
        return NoisyMax(
            noise="gaussian" if gaussian else "laplace",
            candidates=self.classes,
            sensitivity=1.0,
            scale=scale,
            changed=min(2, self.classes),
        )

    def answer_event(self) -> DpEvent:
        """Return the event of one answer."""
        if self.gamma is None:
            return self.winner().event()
        # Whole counts plus rounded Laplace noise are a rounding of counts plus Laplace noise.
        return repeat(LaplaceEvent(1 / self.gamma), min(2, self.classes))

    def test_event(self) -> DpEvent:
        """Return the event of the test whether a query is answered."""
        if self.sigma_threshold is None:
            return compose()
        return GaussianEvent(self.sigma_threshold / ROUNDING)

    def event(self) -> DpEvent:
        """Everything that may be asked."""
        answers = self.queries if self.answers is None else self.answers
        return compose(repeat(self.test_event(), self.queries), repeat(self.answer_event(), answers))

    def epsilon(self, delta: float) -> float:
        """The data-independent ε, exact for the composition of all that the plan allows."""
        return price(self.event(), _validate.delta("delta", delta))

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def queries_for(
    teachers: int, *, epsilon: float, delta: float, most: int, noise_share: float = NOISE_SHARE
) -> int:
    """How many answers leave Gaussian noise at `noise_share` of the teachers: enough to hear a clear majority.

    >>> few, many = (queries_for(teachers, epsilon=1, delta=1e-5, most=10_000) for teachers in (250, 500))
    >>> few < many
    True
    """
    one = VotePlan.calibrated(epsilon=epsilon, delta=delta, mechanism="gnmax", teachers=teachers, queries=1)
    assert one.sigma is not None
    # Noise for k answers is √k times that for one.
    return max(1, min(_validate.integer("most", most, least=1), int((noise_share * teachers / one.sigma) ** 2)))
