"""Accuracy on private records that were kept out of training: two noisy counts, charged like any release.

`keep_out` sets some records aside, by secret coins; `HeldOut.accuracy` measures a model on them, at a price;
`EarlyStopping` does so after each epoch. `keep_some` trains on fewer records, by the same coins.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from sfumato import _validate
from sfumato.accounting import DpEvent, Relation, compose, repeat
from sfumato.datasets import Chosen, Dataset
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate, Ledger, Unrecorded
from sfumato.mechanisms import DiscreteLaplace
from sfumato.randomness import Sampler, SecretStream
from sfumato.runs import EpochReport
from sfumato.storage import RunFolder, write_whole
from sfumato.training.answers import answering
from sfumato.training.data import chosen_by, columns_of
from sfumato.training.plan import RECORD

PURPOSE = "accuracy on records kept out"
_KEPT_OUT, _KEPT = "kept_out.bin", "kept.bin"  # coins, in the private half of a run folder
_HEADER = 8  # bytes: the chance, as a double; then one byte a record, and one of marks if there are any
_MARKS = {  # at the end of the coins, for those of other streams than secret ones of Sfumato's own
    Chosen(private=False): b"\x81",
    Chosen(own_code=True): b"\x82",
    Chosen(private=False, own_code=True): b"\x83",
}
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class NoisyAccuracy:
    """Share of right answers among records kept out, from noisy counts.

    Attributes:
        accuracy: The share of right answers, from noisy counts.
        low: Lower end of its 95% interval, for people like these: it covers the noise and the random choice
            of the records kept out.
        high: Upper end of it.
        epsilon: The ε of the measurement.
        certificate: The certificate of this release.
    """

    accuracy: float
    low: float
    high: float
    epsilon: float
    certificate: Certificate

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "low": self.low,
            "high": self.high,
            "epsilon": self.epsilon,
            "certificate": self.certificate.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Private records that no training has seen.

    Attributes:
        rows: The records.
    """

    rows: Dataset

    def accuracy(
        self,
        model: nn.Module,
        *,
        epsilon: float,
        delta: float = 1e-5,
        relation: Relation = Relation.ADD_REMOVE,
        ledger: Ledger | None = None,
        sampler: Sampler | None = None,
    ) -> NoisyAccuracy:
        """Measure the share of right answers, charged to `ledger` before a record is looked at.

        *Guarantees*: released are the counts of right and of wrong answers with discrete Laplace noise of scale
        1/ε. A record is in one count only, and adding or removing it moves that count by one: ε-differential
        privacy. Under another `relation`, where a record may go from one count to the other, the scale is 2/ε.
        The cost of training is added to it, although no record is in both: simple, and never too low.
        Ghosh, Roughgarden & Sundararajan 2012; Dwork & Roth 2014, theorem 3.6.
        """
        whole = np.zeros(len(self.rows), dtype=np.int64)
        terms: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "relation": relation,
            "ledger": ledger,
            "sampler": sampler,
        }
        found = self._measured(model, whole, ("all",), purpose=PURPOSE, **terms)
        low, high = found.interval["all"]
        return NoisyAccuracy(
            accuracy=found.accuracy["all"], low=low, high=high, epsilon=epsilon, certificate=found.certificate
        )

    def accuracy_by_class(
        self,
        model: nn.Module,
        *,
        epsilon: float,
        delta: float = 1e-5,
        ledger: Ledger | None = None,
        sampler: Sampler | None = None,
    ) -> NoisyGroups:
        """Measure the share of right answers in each declared class.

        A record is in one count of one class only, so that all classes together cost ε once.
        """
        if self.rows.classes is None:
            raise InvalidInput(
                f"expected {self.rows.name} to declare its classes, got none; they are not read off the records"
            )
        names = self.rows.class_names or tuple(map(str, range(self.rows.classes)))
        return self._measured(
            model,
            self.rows.targets,
            names,
            purpose=f"{PURPOSE}, by class",
            epsilon=epsilon,
            delta=delta,
            ledger=ledger,
            sampler=sampler,
        )

    def accuracy_by_group(
        self,
        model: nn.Module,
        groups: npt.ArrayLike,
        *,
        names: Sequence[str],
        epsilon: float,
        delta: float = 1e-5,
        ledger: Ledger | None = None,
        sampler: Sampler | None = None,
    ) -> NoisyGroups:
        """Measure each declared subgroup: `groups[n]` is the place in `names` of the group of record n.

        `groups` is made from `rows`, whose records are those that were kept out. `names` must be declared, not
        read off the records; a record of another group counts nowhere.
        """
        numbers = np.asarray(groups)
        if numbers.shape != (len(self.rows),) or numbers.dtype.kind not in "iu":
            raise InvalidInput("expected groups to hold one whole number for each record that was kept out")
        return self._measured(
            model,
            numbers,
            tuple(names),
            purpose=f"{PURPOSE}, by group",
            epsilon=epsilon,
            delta=delta,
            ledger=ledger,
            sampler=sampler,
        )

    def _measured(
        self,
        model: nn.Module,
        groups: npt.NDArray[Any],
        names: Sequence[str],
        *,
        purpose: str,
        relation: Relation = Relation.ADD_REMOVE,
        epsilon: float,
        delta: float,
        ledger: Ledger | None,
        sampler: Sampler | None,
    ) -> NoisyGroups:
        """Pay, then count right and wrong answers of every group, and add noise to each count."""
        if not names or len(set(names)) != len(names):
            raise InvalidInput(f"expected names that are all different, got names={tuple(names)!r}")
        check_ledger(ledger)
        sampler = SecretStream() if sampler is None else sampler
        mechanism = noisy_counts(epsilon, relation)
        inputs, ask = self.rows.tensors()[0], answering(model)  # these may refuse, before the charge
        certificate = (ledger or Unrecorded(delta=delta)).pay_for(
            mechanism.event(),
            purpose=purpose,
            relation=relation,
            unit=self.rows.unit,
            private=self.rows.chosen.private_with(sampler),
            caveats=self.rows.chosen.caveats_with(sampler),
        )
        right = ask(inputs) == self.rows.targets
        found = noisy_shares([right[groups == number] for number in range(len(names))], mechanism, sampler)
        shares = dict(zip(names, found, strict=True))
        return NoisyGroups(
            accuracy={name: share for name, (share, _, _) in shares.items()},
            interval={name: (low, high) for name, (_, low, high) in shares.items()},
            epsilon=epsilon,
            certificate=certificate,
        )


def share_of(
    right: npt.NDArray[np.bool_],
    mechanism: DiscreteLaplace,
    sampler: Sampler,
    *,
    epsilon: float,
    certificate: Certificate,
) -> NoisyAccuracy:
    """Return the noised share of right answers among records of which each adds to one of two counts.

    Args:
        right: (records,) whether the answer to each is right.
        mechanism: The noise of the counts.
        sampler: The secret stream.
        epsilon: The ε of the release, which is paid for.
        certificate: The certificate of the release.
    """
    ((share, low, high),) = noisy_shares([right], mechanism, sampler)
    return NoisyAccuracy(accuracy=share, low=low, high=high, epsilon=epsilon, certificate=certificate)


def noisy_shares(
    groups: Sequence[npt.NDArray[np.bool_]], mechanism: DiscreteLaplace, sampler: Sampler
) -> list[tuple[float, float, float]]:
    """Return the noised share of right answers in each group, and the ends of its interval."""
    counts = np.array([(right.sum(), (~right).sum()) for right in groups], dtype=np.int64)
    slack = _noise_bound(mechanism.scale, (1 - _CONFIDENCE) / 4)
    pairs = mechanism.release(counts.reshape(-1), sampler).reshape(-1, 2).clip(0).tolist()
    return [(right / max(1, right + wrong), *_interval(right, wrong, slack=slack)) for right, wrong in pairs]


@dataclass(frozen=True, kw_only=True)
class NoisyGroups:
    """Accuracy among the records kept out, group by group; all of it together cost ε once.

    Attributes:
        accuracy: The share of right answers in each group, from noisy counts.
        interval: Lower and upper end of each group's interval, each 95% by itself.
        epsilon: The ε of measuring all groups.
        certificate: The certificate of this release.
    """

    accuracy: dict[str, float]
    interval: dict[str, tuple[float, float]]
    epsilon: float
    certificate: Certificate

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "interval": {name: list(ends) for name, ends in self.interval.items()},
            "epsilon": self.epsilon,
            "certificate": self.certificate.to_json(),
        }


def price(epsilon: float, relation: Relation = Relation.ADD_REMOVE) -> DpEvent:
    """Return the event of one `accuracy` at ε."""
    return noisy_counts(epsilon, relation).event()


def noisy_counts(epsilon: float, relation: Relation = Relation.ADD_REMOVE) -> DiscreteLaplace:
    """Return the noise of two counts: a record that comes or goes moves one, one that changes may move both."""
    return DiscreteLaplace.calibrated(sensitivity=1 if relation is Relation.ADD_REMOVE else 2, epsilon=epsilon)


def keep_out(
    data: Any,
    share: float = 0.1,
    *,
    public_size: int | None = None,
    folder: RunFolder | None = None,
    sampler: Sampler | None = None,
) -> tuple[Dataset, HeldOut]:
    """Split the records into those to train on and those kept out, each by a secret coin with chance `share`.

    Coins depend on no data, so that a record that comes or goes moves no other.

    Args:
        data: Private records with a declared size; or (inputs, targets) as tensors or arrays, a TensorDataset
            of the two or a DataLoader of one, and `public_size`.
        share: The chance of each record to be kept out.
        public_size: The number of records that may be known in public. A Dataset declares it.
        folder: The run folder that keeps the coins, so that an interrupted run goes on with the same
            records.
        sampler: The secret stream. A seeded one is for tests: releases from the records then say that they are
            not private, as long as they are handed on as a Dataset.

    Returns:
        The records to train on, and those kept out.

    >>> rows = Dataset(inputs=np.zeros((1000, 2), np.float32), targets=np.zeros(1000, np.int64), name="toy",
    ...                visibility="private", public_size=1000)
    >>> training, held = keep_out(rows, 0.2)
    >>> training.public_size, len(training) + len(held.rows)
    (800, 1000)
    """
    data = _declared(data, public_size)
    size = size_without(share, data.public_size or 1)
    _check_one_row_each(data)
    coins, data = _coins(data, share, None if folder is None else folder.private / _KEPT_OUT, sampler)
    declared = None if data.public_size is None else size
    return data.select(~coins, public_size=declared), HeldOut(rows=data.select(coins))


def _declared(data: Any, public_size: int | None) -> Dataset:
    if isinstance(data, Dataset):
        if public_size not in (None, data.public_size):
            raise InvalidInput(
                f"expected one declared size, got public_size={public_size} and data that declare "
                f"{data.public_size}; leave public_size out"
            )
        return data
    pair = columns_of(data)
    if pair is None:
        raise InvalidInput(
            f"expected a Dataset, or inputs and targets as two tensors, got {type(data).__name__}; put the "
            "rows into two tensors, and hand over keep_out((inputs, targets), share, public_size=…)"
        )
    if public_size is None:
        raise InvalidInput(
            "expected public_size=... with rows that do not declare it, got none; declare how many people the "
            "data has, as far as may be known"
        )
    return replace(Dataset.private(pair, public_size=public_size), chosen=chosen_by(data))


def size_without(share: float, size: int) -> int:
    """Return the declared size of the training records when `share` of `size` records is kept out."""
    if not 0 < _validate.probability("share", share) < 1:
        raise InvalidInput(f"expected a share between 0 and 1, got share={share}; 0.1 keeps out a tenth")
    return max(1, round((1 - share) * size))


def keep_some(
    data: Dataset, count: int, *, folder: RunFolder | None = None, sampler: Sampler | None = None
) -> Dataset:
    """Keep about `count` of the records: each with chance `count` / declared size, by a secret coin of its own.

    `count` becomes the declared size. Were the first `count` rows taken, a record that leaves would let another
    in, and neighbours would differ in two.

    Args:
        data: Records with a declared size.
        count: How many are kept on average.
        folder: The run folder that keeps the coins, so that an interrupted run goes on with the same
            records.
        sampler: The secret stream. A seeded one is for tests: releases from the records then say that they are
            not private, as long as they are handed on as a Dataset.

    Returns:
        The records kept.

    >>> rows = Dataset(inputs=np.zeros((1000, 2), np.float32), targets=np.zeros(1000, np.int64), name="toy",
    ...                visibility="private", public_size=1000)
    >>> keep_some(rows, 200).public_size
    200
    """
    count = _validate.integer("count", count, least=1)
    if data.public_size is None or count > data.public_size:
        raise InvalidInput(
            f"expected count <= the declared size of {data.name}, got count={count}, "
            f"public_size={data.public_size}; the rows themselves are not counted"
        )
    _check_one_row_each(data)
    if count == data.public_size:
        return data
    place = None if folder is None else folder.private / _KEPT
    coins, data = _coins(data, count / data.public_size, place, sampler)
    return data.select(coins, public_size=count)


def _check_one_row_each(data: Dataset) -> None:
    """Refuse units of several rows: a person whose rows are here and there would count twice."""
    if data.unit != RECORD:
        raise InvalidInput(
            f"expected unit='record', of which each row has a coin of its own, got unit={data.unit!r}; choose "
            "among people before their rows become a data set"
        )


def _coins(
    data: Dataset, chance: float, place: Path | None, sampler: Sampler | None
) -> tuple[npt.NDArray[np.bool_], Dataset]:
    """Return a coin for each record, and the data set whose parts name the draws that chose them.

    Coins kept at `place`, if any, must be as many and of that chance.
    """
    if place is not None and place.exists():
        coins, chosen = _read_coins(place, len(data), chance)
    else:
        chosen = Chosen.by(sampler)
        coins = (SecretStream() if sampler is None else sampler).bernoulli(chance, len(data))
        if place is not None:
            write_whole(place, struct.pack("<d", chance) + coins.tobytes() + _MARKS.get(chosen, b""))
    return coins, replace(data, chosen=data.chosen.joined(chosen))


def _read_coins(place: Path, count: int, chance: float) -> tuple[npt.NDArray[np.bool_], Chosen]:
    content = place.read_bytes()
    marks = {mark: chosen for chosen, mark in _MARKS.items()} | {b"": Chosen()}
    found = marks.get(content[_HEADER + count :])
    coins = np.frombuffer(content[_HEADER : _HEADER + count], dtype=np.uint8)
    known = len(coins) == count and bool((coins <= 1).all())  # with more records a mark would be a coin
    if content[:_HEADER] != struct.pack("<d", chance) or not known or found is None:
        raise InvalidInput(
            f"expected {place} to be of the same data set and share; start anew in another folder"
        )
    return coins.view(np.bool_), found


def _noise_bound(scale: float, chance: float) -> int:
    """Return the least t with P(|X| > t) ≤ chance, discrete Laplace X: 2aᵗ⁺¹ / (1 + a), a = exp(−1/scale)."""
    a = math.exp(-1 / scale)
    return max(0, math.ceil(math.log(chance * (1 + a) / 2) / math.log(a)) - 1)


def _interval(right: int, wrong: int, *, slack: int) -> tuple[float, float]:
    """Return the interval of Clopper & Pearson (1934); both counts may be off by `slack` (half the risk)."""
    from scipy.stats import beta  # takes half a second, which most users need not wait for

    least, most = max(0, right - slack), right + slack
    fewest, many = max(0, wrong - slack), wrong + slack
    risk = (1 - _CONFIDENCE) / 4
    low = 0.0 if least == 0 else float(beta.ppf(risk, least, many + 1))
    high = 1.0 if fewest == 0 else float(beta.ppf(1 - risk, most + 1, fewest))
    return low, high


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Measure accuracy on records kept out after each epoch, and stop when it has not risen for a while.

    *Guarantees*: each measurement is a release of its own, charged before a record is looked at; how many there
    can be at most is known beforehand, and a ledger without room for all of them refuses the run before it
    starts. The stop depends on noised figures only. Steps that were not started cost nothing, but the price of
    a run that was stopped is not that of a shorter plan: its certificate states prices that hold however the
    stop was decided (the whole plan's, or a privacy filter's; Feldman & Zrnic 2021). No record is in training
    and in the measurement; their prices are added all the same: the ε of the run is that of both.

    Args:
        held: The records kept out, from `keep_out`.
        epsilon: The ε of one measurement, on top of training.
        patience: How many epochs in a row may pass without a new best figure.
        least_gain: By how much a figure must exceed the best so far. The noise of a count has a standard
            deviation of about 1.4 / epsilon records.

    >>> rows = Dataset(inputs=np.zeros((1000, 2), np.float32), targets=np.zeros(1000, np.int64), name="toy",
    ...                visibility="private", public_size=1000)
    >>> training, held = keep_out(rows, 0.2)
    >>> EarlyStopping(held=held, epsilon=0.1).patience
    2
    """

    held: HeldOut
    epsilon: float
    patience: int = 2
    least_gain: float = 0.0

    def __post_init__(self) -> None:
        _validate.instance("held", self.held, HeldOut, remedy="as in training, held = keep_out(rows, 0.1)")
        _validate.positive("epsilon", self.epsilon)
        _validate.integer("patience", self.patience, least=1)
        _validate.non_negative("least_gain", self.least_gain)

    def event(self, epochs: int, *, relation: Relation = Relation.ADD_REMOVE) -> DpEvent:
        """Return the event of measuring after so many epochs."""
        return repeat(price(self.epsilon, relation), epochs)

    def is_over(self, history: Sequence[EpochReport]) -> bool:
        """Whether the last `patience` figures did not exceed the best one before them."""
        figures = [one.held_out_accuracy for one in history if one.held_out_accuracy is not None]
        if len(figures) <= self.patience:
            return False
        before, since = figures[: -self.patience], figures[-self.patience :]
        return max(since) <= max(before) + self.least_gain


def measured_at_most(
    history: Sequence[EpochReport], stopping: EarlyStopping | None, epochs: int, *, relation: Relation
) -> tuple[DpEvent, DpEvent]:
    """Return the event of the measurements so far, and of one more for each epoch that was not measured."""
    prices = [report.held_out_epsilon for report in history if report.held_out_epsilon is not None]
    done = compose(*(repeat(price(one, relation), prices.count(one)) for one in dict.fromkeys(prices)))
    if stopping is None:
        return done, done
    return done, compose(done, stopping.event(epochs - len(prices), relation=relation))


def check_ledger(ledger: Any) -> None:
    """Refuse the name of a ledger: the code that opens it closes it."""
    name = ledger if isinstance(ledger, str) else "people.db"
    _validate.instance("ledger", ledger, Ledger, remedy=f"as in ledger=sfumato.Ledger.open({name!r})")
