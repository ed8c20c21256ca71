"""A second opinion: the ε that a run of other software really costs, and the faults of its claim."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.accounting import (
    DpEvent,
    NonPrivateEvent,
    Relation,
    check_affordable,
    epsilon,
    event_to_json,
    protection_warning,
)
from sfumato.accounting.meaning import LARGEST_DELTA
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.governance.judges import (
    Finding,
    judge_flower_central,
    judge_flower_local,
    judge_gradient,
    judge_local,
    judge_nvflare,
    judge_votes,
)
from sfumato.governance.settings import Setting, Settings, read_settings

_AGREE = 0.02
"""Two accountants may differ by this much, relatively, before a claim is called wrong."""


@dataclass(frozen=True, kw_only=True)
class Opinion:
    """Compare a claimed ε with the one that holds, and list the faults of the claim.

    Attributes:
        library: The software that made the run.
        claimed_epsilon: The ε that was claimed, or None.
        epsilon: The ε that holds at `delta` under `relation`; infinite where none does.
        delta: The δ of both.
        relation: Which data sets are neighbours.
        unit: The unit that is protected.
        problems: Faults, in sentences, the gravest first; empty where the claim holds.
        assumed: Assumptions about facts that the settings do not state.
        others: Prices under other relations or assumptions.
        ignored: Settings that say nothing about privacy.
        event: The releases, as the ledger would charge them.
    """

    library: str
    claimed_epsilon: float | None
    epsilon: float
    delta: float
    relation: Relation
    unit: str
    problems: tuple[str, ...]
    assumed: tuple[str, ...]
    others: dict[str, float]
    ignored: tuple[str, ...]
    event: DpEvent

    @property
    def holds(self) -> bool | None:
        """Whether the claimed ε is no smaller than the one that holds; None without a claim."""
        if self.claimed_epsilon is None:
            return None
        return self.epsilon <= self.claimed_epsilon * (1 + _AGREE)

    def to_json(self) -> dict[str, Any]:
        """All of it as one JSON object.

        Returns:
            The dictionary.
        """
        return {
            "library": self.library,
            "claimed_epsilon": self.claimed_epsilon,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": str(self.relation),
            "unit": self.unit,
            "holds": self.holds,
            "problems": list(self.problems),
            "assumed": list(self.assumed),
            "others": self.others,
            "ignored": list(self.ignored),
            "event": event_to_json(self.event),
        }


def opinion_of(source: str | os.PathLike[str] | Sequence[Setting]) -> Opinion:
    """Price a run of other software from its settings.

    Args:
        source: A JSON, TOML or YAML file, or names and values. Nothing in a file is executed.

    Returns:
        The opinion.

    Raises:
        InvalidInput: If the settings do not describe a run.

    >>> shuffled = [("library", "opacus"), ("noise_multiplier", 1.2), ("batch_size", 64), ("epochs", 10),
    ...     ("dataset_size", 60000), ("delta", 1e-5), ("poisson_sampling", False), ("epsilon", 0.79)]
    >>> found = opinion_of(shuffled)
    >>> round(found.epsilon, 1), str(found.relation), found.holds
    (14.1, 'zero-out', False)
    """
    settings = read_settings(source) if isinstance(source, str | os.PathLike) else list(source)
    run = Settings(settings)
    library, judge = _recognised(run)
    found = judge(run)
    stated = run.relation()
    found = found if stated is None else found.under(stated)
    check_affordable(found.event)
    price = _price(found.event, found.delta, found.relation)
    others = {name: _price(event, found.delta, relation) for name, (event, relation) in found.others.items()}
    return Opinion(
        library=library,
        claimed_epsilon=found.claimed,
        epsilon=price,
        delta=found.delta,
        relation=found.relation,
        unit=found.unit,
        problems=(*_claims(found, price), *found.problems, *_about_delta(found, run)),
        assumed=found.assumed,
        others=others,
        ignored=run.ignored,
        event=found.event,
    )


def _price(event: DpEvent, delta: float, relation: Relation) -> float:
    try:
        return epsilon(event, delta, relation=relation)
    except (NotPrivate, ArithmeticError):
        return math.inf


def _claims(found: Finding, price: float) -> list[str]:
    """The gravest thing first: whether the claim holds at all."""
    said = []
    if not math.isfinite(price) and not isinstance(found.event, NonPrivateEvent):
        said.append("No finite ε holds: the noise is zero, or δ is zero where the noise needs one.")
    if found.claimed is not None and math.isfinite(price):
        if price > found.claimed * (1 + _AGREE):
            said.append(
                f"ε = {found.claimed:g} was claimed; what was done costs ε = {price:.4g} ({found.relation})."
            )
        elif price < found.claimed * (1 - _AGREE):
            said.append(
                f"The claim is safe but loose: ε = {found.claimed:g} was claimed, and ε = {price:.4g} "
                f"({found.relation}) already holds."
            )
    warning = protection_warning(price, 0.0) if math.isfinite(price) else None
    if warning is not None:
        said.append(f"This {warning}.")
    return said


def _about_delta(found: Finding, run: Settings) -> list[str]:
    said = []
    if run.has("size") and found.delta * run.whole("size") >= 1:
        said.append(
            f"δ = {found.delta:g} is not below 1 / number of records: publishing one record would count as "
            "private."
        )
    elif found.delta >= LARGEST_DELTA:
        said.append(
            f"δ = {found.delta:g} is too large to protect anybody; choose it well below 1 / number of people."
        )
    return said


def _recognised(run: Settings) -> tuple[str, Callable[[Settings], Finding]]:
    """Which software it was: said by the file, or seen from its words; otherwise DP-SGD of an unknown one."""
    said = (run.text("library") or "").lower().replace("_", "-").replace(" ", "-")
    for names, words, signs, library, judge in _KINDS:
        if any(name in said for name in names) or (
            not said and (run.mentions(*words) or (signs and run.has(*signs)))
        ):
            return library, judge
    if run.has("noise_multiplier"):
        if run.has("rounds"):
            return said or "federated averaging", judge_flower_central
        return said or "DP-SGD", lambda settings: judge_gradient(settings, said or "DP-SGD")
    raise InvalidInput(
        "expected settings of a run that can be recognised, got none of: noise_multiplier with batch, size "
        "and epochs; library = opacus, tf-privacy, jax-privacy, flower, nvflare, pate or local"
    )


def _gradient(library: str) -> Callable[[Settings], Finding]:
    return lambda run: judge_gradient(run, library)


def _flower(run: Settings) -> Finding:
    return judge_flower_central(run) if run.has("noise_multiplier") else judge_flower_local(run)


# Names in `library`, words in any text, settings that only one of them has, the name to show, and who judges.
_Words = tuple[str, ...]
_KINDS: tuple[tuple[_Words, _Words, _Words, str, Callable[[Settings], Finding]], ...] = (
    (("nvflare", "nvidia"), ("nvflare", "svtprivacy"), ("fraction", "release_noise"), "nvflare", judge_nvflare),
    (("flower", "flwr"), ("flwr", "flower"), ("rounds", "sensitivity"), "flower", _flower),
    (("pate",), ("pate",), ("queries", "query_noise"), "pate", judge_votes),
    (("local",), ("local noise",), (), "local noise", judge_local),
    (("opacus",), ("opacus",), (), "opacus", _gradient("opacus")),
    (("tf-privacy", "tensorflow"), ("tensorflow-privacy", "tensorflow_privacy", "tf_privacy", "tf-privacy"),
     ("noise_multiplier", "microbatches"), "tf-privacy", _gradient("tf-privacy")),
    (("jax",), ("jax_privacy", "jax-privacy"), (), "jax-privacy", _gradient("jax-privacy")),
)  # fmt: skip
