"""Rehearsals in one process of studies that add numbers up: votes of teachers, updates of clients, an attack.

*Votes* (PATE across holders). Each holder hosts teachers, their votes are summed under masks, and the noisy
counts open. The coordinator and the recipients of the labels see noisy counts of all classes and no vote. So
the price is that of the whole histogram: one unit moves one teacher's vote, two counts by 1, Δ = √2 for each
query. A test whether the teachers agree reads a noisy histogram too, and costs as much as one (Papernot et al.
2018 price a test of the maximum, with Δ = 1, but it needs a party that sees the votes). No party knows the
votes, so that there is no data-dependent figure.

*Averaging* with the privacy of clients. In each round the clients that the coordinator picked train a head on
public features on their own rows, clip the change, and send it under masks with their share of the noise
(McMahan et al. 2018, "Learning differentially private recurrent language models", algorithm 1, with secure sums
in place of a trusted server). The coordinator knows the picked clients: there is no amplification by sampling,
and a client pays for every round that it may be in.

*The attack* of a coalition on one round: it decides which records of one honest holder are in the sum. Each
canary owns one number of the sum. The coalition knows everything but which canaries are present: it subtracts
its own inputs, shares of noise included, and those of the other holders. No unit is sampled: the worst case.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _validate, accounting
from sfumato.accounting import GaussianEvent
from sfumato.audit import dirac_scores
from sfumato.audit.replay import RecordingSampler, ReplayingSampler
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput, Refused
from sfumato.fitting import evaluate
from sfumato.holders.parties import Parties
from sfumato.holders.rounds import Losses, Lost, random_losses
from sfumato.holders.sums import (
    DeskSums,
    Part,
    SumRound,
    SumStudy,
    Values,
    calibrated_rounds,
    new_keys,
    public_keys,
)
from sfumato.learn import features, recipe_for
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PublicKey
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.pate import MISSING, NOISE_SHARE, PateSettings, PublicSide, VotePlan, assign, count_votes, draw_key
from sfumato.pate.pipeline import fold_accuracies_of, mean_over_images, start_accuracy_of, votes_on
from sfumato.randomness import Sampler, SecretStream
from sfumato.training import cross_entropy

UNIT = "client"
MECHANISMS = ("gnmax", "confident")
Shares = Callable[[int], Sampler]
"""The source of the noise of the holder at a place."""


# Votes


@dataclass(frozen=True, kw_only=True)
class VoteTerms:
    """The rules by which votes of teachers at several holders make labels.

    "gnmax" releases a noisy histogram of each query. "confident" first releases one of every query with
    `test_noise` times the noise, and asks those again of which the largest noisy count reaches `threshold`, the
    first `answers` of them.

    Args:
        mechanism: "gnmax" or "confident".
        teachers: Number of teachers of each holder.
        queries: Most queries.
        classes: Number of classes.
        holders_per_unit: Most holders that have rows of one person; its votes move at each of them.
        answers: For "confident": most answers.
        threshold: For "confident": number of all teachers that must agree.
        test_noise: For "confident": noise of the test over that of an answer.

    Raises:
        InvalidInput: If a field is outside its range.

    >>> VoteTerms(mechanism="gnmax", teachers=2, queries=100, classes=10).holders_per_unit
    1
    """

    mechanism: str
    teachers: int
    queries: int
    classes: int
    holders_per_unit: int = 1
    answers: int | None = None
    threshold: float | None = None
    test_noise: float = 3.0

    def __post_init__(self) -> None:
        _validate.one_of("mechanism", self.mechanism, MECHANISMS)
        for name in ("teachers", "queries", "classes", "holders_per_unit"):
            _validate.integer(name, getattr(self, name), least=1)
        _validate.positive("test_noise", self.test_noise)
        confident = self.mechanism == "confident"
        if (self.answers is not None) != confident or (self.threshold is not None) != confident:
            raise InvalidInput("expected answers and threshold with mechanism='confident', and only with it")
        if self.answers is not None and not 1 <= _validate.integer("answers", self.answers) <= self.queries:
            raise InvalidInput(f"expected answers from 1 to {self.queries}, got answers={self.answers}")

    def rounds(self, parties: Parties, noise: float) -> tuple[SumRound, ...]:
        """Return rounds with √2 · `noise` on the counts of an answer, from the counted shares together."""

        def histograms(count: int, width: float) -> SumRound:
            part = Part(
                sensitivity=math.sqrt(2 * count) * self.holders_per_unit,
                dimension=count * self.classes,
                noise_multiplier=width / math.sqrt(count),
                shares=parties.counted,
                largest=parties.holders * self.teachers,
            )
            return SumRound((part,))

        if self.answers is None:
            return (histograms(self.queries, noise),)
        return histograms(self.queries, self.test_noise * noise), histograms(self.answers, noise)


def vote_study(
    terms: VoteTerms,
    parties: Parties,
    keys: Mapping[str, PublicKey],
    *,
    name: str,
    unit: str,
    epsilon: float,
    delta: float,
) -> SumStudy:
    """Return the study with the least noise that costs at most (ε, δ) against the best informed adversary."""
    return SumStudy(
        name=name,
        kind="votes",
        plan={"votes": {name: value for name, value in vars(terms).items() if value is not None}},
        unit=unit,
        delta=delta,
        parties=parties,
        rounds=calibrated_rounds(lambda noise: terms.rounds(parties, noise), epsilon=epsilon, delta=delta),
        keys=keys,
    )


def affordable_queries(
    parties: Parties, *, teachers: int, classes: int, epsilon: float, delta: float, most: int
) -> int:
    """Return the number of answers that leaves the noise at 0.3 of the remaining teachers."""
    one = VoteTerms(mechanism="gnmax", teachers=teachers, queries=1, classes=classes)
    (found,) = calibrated_rounds(lambda noise: one.rounds(parties, noise), epsilon=epsilon, delta=delta)
    left = parties.least * teachers
    return max(1, min(most, int((NOISE_SHARE * left / found.parts[0].deviation(parties.least)) ** 2)))


def labels_by_vote(terms: VoteTerms, desk: DeskSums, votes: Mapping[int, npt.NDArray[np.int64]]) -> Integers:
    """Return a label for each query, −1 where there is none, from noisy counts only.

    `votes` holds (teachers, queries) of each holder by place, −1 for a missing teacher.

    Raises:
        Refused: If a round was abandoned; the charges stay.
    """
    counts = {place: count_votes(one, classes=terms.classes) for place, one in votes.items()}

    def histograms(number: int, queries: Integers) -> npt.NDArray[np.float64]:
        def values(place: int) -> Values:
            def asked() -> list[npt.NDArray[np.int64]]:
                flat = np.zeros(desk.study.rounds[number - 1].dimension, dtype=np.int64)
                flat[: len(queries) * terms.classes] = counts[place][queries].reshape(-1)
                return [flat]

            return asked

        opened = desk.add_up(number, {place: values(place) for place in desk.keys})
        if opened is None:
            raise Refused("the round of votes was abandoned, as too many holders were lost; it stays charged")
        return opened.parts[0].reshape(-1, terms.classes)

    queries = np.arange(terms.queries)
    labels = np.full(terms.queries, MISSING, dtype=np.int64)
    if terms.answers is None:
        labels[:] = histograms(1, queries).argmax(axis=1)
        return labels
    assert terms.threshold is not None
    sure = np.flatnonzero(histograms(1, queries).max(axis=1) >= terms.threshold)[: terms.answers]
    labels[sure] = histograms(2, sure)[: len(sure)].argmax(axis=1)
    return labels


@dataclass(frozen=True, kw_only=True)
class SimulatedVotes:
    """The outcome of a vote in one process.

    Attributes:
        study: The study.
        terms: The rules for labels.
        labels: One for each public image that was asked about, −1 where there is none.
        label_accuracy: The share of labels that are right; None without any.
        student_accuracy: Over all public images, each tested by a student that did not see it.
        start_accuracy: The same without any private label.
        certificates: Of each holder that took part, by its place.
        seconds: Duration.
    """

    study: SumStudy
    terms: VoteTerms
    labels: Integers
    label_accuracy: float | None
    student_accuracy: float
    start_accuracy: float
    certificates: Mapping[int, Certificate]
    seconds: float


def simulate_votes(
    private: Dataset,
    public: Dataset,
    *,
    parties: Parties,
    terms: VoteTerms,
    settings: PateSettings,
    epsilon: float,
    delta: float = 1e-5,
    losses: Losses | None = None,
    ledgers: Mapping[int, Ledger] | None = None,
    masked: bool = True,
) -> SimulatedVotes:
    """Deal private rows out to holders, let their teachers label public images, and train a student.

    Args:
        private: The holders' rows, which declare their size and classes.
        public: Public images to label; their own labels only measure.
        settings: Teachers and students, as in `pate.run`; its plan is not used.

    Returns:
        The labels, the student's accuracy, and a certificate of each holder.

    Raises:
        InvalidInput: If too few holders can pay.
        Refused: If a round was abandoned.

    ```python
    parties = Parties(holders=100, dropped=5, colluding=10)
    terms = VoteTerms(mechanism="gnmax", teachers=2, queries=90, classes=10)
    done = simulate_votes(private, public, parties=parties, terms=terms, settings=settings, epsilon=1)
    print(done.student_accuracy, done.study.epsilons())
    ```
    """
    started = time.perf_counter()
    keys = new_keys(parties.holders)
    study = vote_study(
        terms,
        parties,
        public_keys(keys),
        name=f"labels of {public.name} at a desk",
        unit=private.unit,
        epsilon=epsilon,
        delta=delta,
    )
    desk = DeskSums(
        study, keys, losses=losses or random_losses(parties, SecretStream()), ledgers=ledgers, masked=masked
    )
    side = PublicSide.of(
        public.inputs, settings.adaptation, classes=terms.classes, progress=lambda stage, share: None
    )
    queries = side.queries(terms.queries)
    votes = _votes(private, side, queries, terms, parties, settings)
    labels = labels_by_vote(terms, desk, {place: votes[place - 1] for place in desk.keys})
    everywhere = np.full(len(public), MISSING, dtype=np.int64)
    everywhere[queries] = labels
    given = labels != MISSING
    folds = fold_accuracies_of(side, everywhere, public.targets, settings.student, folds=settings.folds)
    return SimulatedVotes(
        study=study,
        terms=terms,
        labels=labels,
        label_accuracy=float((labels == public.targets[queries])[given].mean()) if given.any() else None,
        student_accuracy=mean_over_images(folds, len(public), settings.folds),
        start_accuracy=start_accuracy_of(side, public.targets),
        certificates=desk.certificates(),
        seconds=time.perf_counter() - started,
    )


def _votes(
    private: Dataset,
    side: PublicSide,
    queries: Integers,
    terms: VoteTerms,
    parties: Parties,
    settings: PateSettings,
) -> Integers:
    """Return (holders, teachers, queries) votes: rows are dealt to holders, and to teachers by a keyed hash."""
    rows = np.arange(len(private))
    holder = rows % parties.holders
    teacher = np.empty(len(private), dtype=np.int64)
    for place in range(parties.holders):
        own = rows[holder == place]
        teacher[own] = assign(own, teachers=terms.teachers, key=draw_key(SecretStream()))
    teachers = parties.holders * terms.teachers
    plan = VotePlan(
        mechanism="gnmax", teachers=teachers, queries=terms.queries, classes=terms.classes, sigma=1.0
    )
    votes = votes_on(private, holder * terms.teachers + teacher, side, queries, replace(settings, plan=plan))
    return votes.reshape(parties.holders, terms.teachers, -1)


# Averaging


@dataclass(frozen=True, kw_only=True)
class AveragingTerms:
    """Settings of clients' training, and of the average of their updates.

    Args:
        clients: Number of clients.
        rounds: Number of rounds.
        local_steps: Steps of plain gradient descent that a client takes on all its rows in a round.
        learning_rate: The size of these steps.
        clip_norm: C, the bound of one client's update in L2 norm.
        server_rate: The factor of the noisy average.

    >>> AveragingTerms(clients=1000).taken(cohort=100)  # of 12 rounds
    2
    """

    clients: int
    rounds: int = 12
    local_steps: int = 5
    learning_rate: float = 8.0
    clip_norm: float = 4.0
    server_rate: float = 2.0

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "local_steps"):
            _validate.integer(name, getattr(self, name), least=1)
        for name in ("learning_rate", "clip_norm", "server_rate"):
            _validate.positive(name, getattr(self, name))

    def taken(self, cohort: int) -> int:
        """Return the most rounds that one client is in, if cohorts go round."""
        return math.ceil(self.rounds * cohort / self.clients)

    def cohort(self, number: int, size: int) -> list[int]:
        """Return the places of the clients in round `number`, from 1: one cohort after another."""
        first = (number - 1) * size
        return sorted((first + offset) % self.clients + 1 for offset in range(size))


def averaging_study(
    terms: AveragingTerms,
    parties: Parties,
    keys: Mapping[str, PublicKey],
    *,
    name: str,
    parameters: int,
    epsilon: float,
    delta: float,
) -> SumStudy:
    """Return the study with the least noise that costs each client at most (ε, δ)."""
    if parties.holders > terms.clients:
        raise InvalidInput(f"expected at most {terms.clients} clients in a round, got {parties.holders}")
    picked = parties.holders < terms.clients
    taken = terms.taken(parties.holders) if picked else None

    def rounds(noise: float) -> tuple[SumRound, ...]:
        part = Part(
            sensitivity=terms.clip_norm,
            dimension=parameters,
            noise_multiplier=noise,
            shares=parties.counted,
            largest=parties.holders * terms.clip_norm,
        )
        return (SumRound((part,)),) * terms.rounds

    return SumStudy(
        name=name,
        kind="averaging",
        plan={"averaging": asdict(terms)},
        unit=UNIT,
        delta=delta,
        parties=parties,
        rounds=calibrated_rounds(rounds, epsilon=epsilon, delta=delta, taken=taken),
        keys=keys,
        taken=taken,
    )


@dataclass(frozen=True, kw_only=True)
class SimulatedAveraging:
    """The outcome of federated averaging in one process.

    Attributes:
        study: The study.
        terms: Settings of the training.
        model: The head, which takes features and not rows.
        test_accuracy: The share of right answers on the public test rows; None without any.
        certificates: Of each client, by its place.
        abandoned: Number of abandoned rounds.
        seconds: Duration.
    """

    study: SumStudy
    terms: AveragingTerms
    model: nn.Module
    test_accuracy: float | None
    certificates: Mapping[int, Certificate]
    abandoned: int
    seconds: float


def simulate_averaging(
    rows: Dataset,
    test: Dataset | None,
    *,
    parties: Parties,
    terms: AveragingTerms,
    epsilon: float,
    delta: float = 1e-5,
    losses: Losses | None = None,
    ledgers: Mapping[int, Ledger] | None = None,
    masked: bool = True,
    on_round: Callable[[], None] = lambda: None,
) -> SimulatedAveraging:
    """Deal the rows out to many clients and average their updates, each round under masks and noise.

    Args:
        on_round: Called after each round.

    Returns:
        The head, its accuracy, and a certificate of each client.

    Raises:
        InvalidInput: If too few clients can pay.

    ```python
    terms = AveragingTerms(clients=1000, rounds=12)
    done = simulate_averaging(rows, test, parties=Parties(holders=100), terms=terms, epsilon=8)
    print(done.test_accuracy, done.study.taken)  # every client was in so many rounds at most
    ```
    """
    started = time.perf_counter()
    recipe = recipe_for(rows.name)
    network = features.build(recipe, classes=features.declared(rows)[1])
    head = network.head
    keys = new_keys(terms.clients)
    study = averaging_study(
        terms,
        parties,
        public_keys(keys),
        name=f"{rows.name} of many clients",
        parameters=sum(parameter.numel() for parameter in head.parameters()),
        epsilon=epsilon,
        delta=delta,
    )
    of_round = losses or random_losses(parties, SecretStream())

    def lost(number: int) -> Mapping[int, Lost]:
        """Name lost clients by their places in the study, not in the cohort."""
        cohort = terms.cohort(number, parties.holders)
        return {cohort[place - 1]: message for place, message in of_round(number).items()}

    def update(place: int) -> Values:
        own = slice(place - 1, None, terms.clients)
        return lambda: [clipped_update(head, inputs[own], targets[own], terms)]

    desk = DeskSums(study, keys, losses=lost, ledgers=ledgers, masked=masked)
    inputs, targets = features.featured(network, rows).tensors()
    abandoned = 0
    for number in range(1, terms.rounds + 1):
        cohort = [place for place in terms.cohort(number, parties.holders) if place in desk.keys]
        total = desk.add_up(number, {place: update(place) for place in cohort})
        if total is None:
            abandoned += 1
        else:
            _add(head, total.parts[0] * (terms.server_rate / total.holders))
        on_round()
    seen = None if test is None else features.featured(network, test)
    return SimulatedAveraging(
        study=study,
        terms=terms,
        model=head,
        test_accuracy=None if seen is None else evaluate(head, seen).accuracy,
        certificates=desk.certificates() if ledgers else {},
        abandoned=abandoned,
        seconds=time.perf_counter() - started,
    )


def clipped_update(
    head: nn.Module, inputs: Tensor, targets: Tensor, terms: AveragingTerms
) -> npt.NDArray[np.float64]:
    """Return the change of the head by plain gradient descent on a client's rows, of norm at most `clip_norm`.

    *Guarantees*: norm ≤ C for any rows; a change that is not finite counts as zero.
    """
    moved = copy.deepcopy(head)
    optimizer = torch.optim.SGD(moved.parameters(), lr=terms.learning_rate)
    for _ in range(terms.local_steps if len(inputs) else 0):
        loss = cross_entropy(moved(inputs), targets).mean()
        for parameter, slope in zip(
            moved.parameters(), torch.autograd.grad(loss, list(moved.parameters())), strict=True
        ):
            parameter.grad = slope
        optimizer.step()
    before, after = _flat(head), _flat(moved)
    change = after - before
    norm = float(np.linalg.norm(change))
    if not math.isfinite(norm):
        return np.zeros_like(change)
    # 2⁻⁴⁰ is more than a norm in doubles loses by rounding.
    return change * min(1.0, terms.clip_norm / norm * (1 - 2.0**-40)) if norm else change


def _flat(head: nn.Module) -> npt.NDArray[np.float64]:
    return torch.cat([value.detach().reshape(-1) for value in head.parameters()]).numpy().astype(np.float64)


@torch.no_grad()
def _add(head: nn.Module, change: npt.NDArray[np.float64]) -> None:
    start = 0
    for value in head.parameters():
        part = torch.from_numpy(change[start : start + value.numel()]).reshape(value.shape)
        value.add_(part.to(value.dtype))
        start += value.numel()


# The attack


@dataclass(frozen=True, kw_only=True)
class RoundAttack:
    """A lower bound that the coalition proved with confidence 1 − α, and the exact ε of one unsampled round."""

    claimed_epsilon: float
    lower_bound: float
    delta: float
    alpha: float


class _Colluder:
    """Adds nothing but its share of the noise, and tells the coordinator its values."""

    def __init__(self, study: SumStudy, stream: Sampler) -> None:
        self.sampler = RecordingSampler(stream)
        self._agreed = study.rounds[0]

    def told(self) -> Floats:
        """Return the noise of the last round, made again from its recorded draws."""
        tape, self.sampler.tape = self.sampler.tape, []
        nothing = [np.zeros(part.dimension) for part in self._agreed.parts]
        again = self._agreed.contribution(nothing, ReplayingSampler(SecretStream(), recorded=tape))
        return self._agreed.read(again)[0]


def attack_round(
    parties: Parties,
    *,
    noise_multiplier: float,
    canaries: int = 40_000,
    pairs: int = 8,
    delta: float = 1e-5,
    alpha: float = 1e-6,
    shares: Shares | None = None,
) -> RoundAttack:
    """Attack real rounds, masks and drop-outs included, as the coordinator with the declared colluders would.

    Holder 1 is honest and has the canaries. The last `dropped` holders are lost before their input is sent; the
    colluders are those before them.

    `noise_multiplier` is that of the counted shares together. `shares` replaces the sources of the holders'
    noise, for sabotage.
    """
    part = Part(
        sensitivity=1.0,
        dimension=canaries,
        noise_multiplier=noise_multiplier,
        shares=parties.counted,
        largest=parties.holders,
    )
    keys, made = new_keys(parties.holders), shares or (lambda place: SecretStream())
    study = SumStudy(
        name="an attack",
        kind="attack",
        plan={},
        unit="record",
        delta=delta,
        parties=parties,
        rounds=(SumRound((part,)),) * (2 * pairs),
        keys=public_keys(keys),
    )
    last = parties.least
    lost = dict.fromkeys(range(last + 1, parties.holders + 1), Lost.INPUT)
    colluders = {
        place: _Colluder(study, made(place)) for place in range(last - parties.colluding + 1, last + 1)
    }
    streams = {place: colluders[place].sampler if place in colluders else made(place) for place in keys}
    desk = DeskSums(study, keys, losses=lambda number: lost, samplers=streams)
    numbers, nothing = iter(range(1, 2 * pairs + 1)), np.zeros(canaries)

    def step(present: npt.NDArray[np.bool_]) -> Floats:
        inputs = {place: lambda: [nothing] for place in keys}
        inputs[1] = lambda: [present.astype(np.float64)]
        total = desk.add_up(next(numbers), inputs)
        assert total is not None  # as many as declared are lost, and no more
        return total.parts[0] - sum((one.told() for one in colluders.values()), start=nothing)

    mu = dirac_scores(step, canaries=canaries, pairs=pairs, coins=SecretStream()).mu_bound(alpha=alpha)
    return RoundAttack(
        claimed_epsilon=accounting.epsilon(GaussianEvent(noise_multiplier), delta),
        lower_bound=accounting.epsilon(GaussianEvent(1 / mu), delta) if mu > 0 else 0.0,
        delta=delta,
        alpha=alpha,
    )
