"""What is published beside a release, so that anyone can recompute its ε."""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from sfumato import _validate
from sfumato.accounting import (
    Budget,
    DpEvent,
    PrivacyFilter,
    Relation,
    epsilon,
    event_from_json,
    event_to_json,
    rdp_epsilon,
)
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.ledger.chain import Head
from sfumato.ledger.charge import part_of

FORMAT = 1
SEEDED = "not private: the noise came from a seeded stream, and whoever knows the seed can subtract it"
STOPPED = (
    "stopped early: how much of the plan ran was decided while it ran, so the exact price of the shorter plan "
    "does not hold; pld is that of the whole plan, rdp that of what ran by a filter at orders fixed before; "
    "each holds however the stop was decided"
)
UNRECORDED = "not entered in a ledger: other releases from the same data are not counted here"
_PACKAGES = ("sfumato", "dp-accounting", "numpy", "scipy", "torch", "opendp", "randomgen")
_SLACK = 1e-4  # relative: versions of the accountant discretise otherwise


@dataclass(frozen=True, kw_only=True)
class Prices:
    """ε of one event at one δ by each accountant; None where an accountant gives no finite figure."""

    pld: float | None  # exact, for what was fixed in advance
    rdp: float | None

    @classmethod
    def of(cls, event: DpEvent, delta: float, *, relation: Relation, planned: DpEvent | None = None) -> Prices:
        """Of `event`; of what ran of a plan that was stopped early, if `planned` is the whole plan.

        >>> from sfumato.accounting import GaussianEvent
        >>> prices = Prices.of(GaussianEvent(4.530877), 1e-6, relation=Relation.ADD_REMOVE)
        >>> round(prices.pld, 4), round(prices.rdp, 3)
        (0.9274, 1.0)
        """
        if planned is not None:
            whole = cls.of(planned, delta, relation=relation)
            return cls(pld=whole.pld, rdp=_odometer(event, whole, delta, relation))
        return cls(
            pld=_finite(epsilon, event, delta, relation), rdp=_finite(rdp_epsilon, event, delta, relation)
        )


def _finite(accountant: Any, event: DpEvent, delta: float, relation: Relation) -> float | None:
    try:
        value = float(accountant(event, delta, relation=relation))
    except (NotPrivate, InvalidInput):
        return None
    return value if math.isfinite(value) else None


def _odometer(event: DpEvent, whole: Prices, delta: float, relation: Relation) -> float | None:
    """ε of what ran of a plan, valid however its end was chosen: the filter's, at orders that the plan fixes.

    At a fixed order exp((α−1)(L_t − ρ_t)) is a supermartingale, L_t the loss and ρ_t the divergence of the
    first t releases. So the conversion holds at whatever time t they end (Feldman & Zrnic 2021).
    """
    fixed = whole.rdp if whole.pld is None else whole.pld
    if fixed is None or fixed <= 0:
        return None
    rule = PrivacyFilter(Budget(epsilon=fixed, delta=delta, relation=relation))
    spending = rule.spending(event)
    value = rule.epsilon(spending)
    return value if math.isfinite(value) and not spending.failure else None


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A release's claim to privacy: whose, under which relation, by which events, at which ε, and caveats.

    States nothing that was read off private data, no hash and no size of it. The figures are for readers;
    `verify` believes the events only, and computes the figures again.

    >>> from sfumato.accounting import LaplaceEvent
    >>> certificate = Certificate.of(LaplaceEvent(2.0), purpose="mean age", delta=0)
    >>> certificate.prices.pld, certificate.verify() == certificate.prices
    (0.5, True)
    """

    purpose: str
    unit: str
    relation: Relation
    delta: float
    event: DpEvent
    prices: Prices
    private: bool = True
    planned: DpEvent | None = None  # the whole plan, if it was stopped early
    dataset: str | None = None  # the declared id of the data set
    plan: Mapping[str, Any] = field(default_factory=dict)
    eta: float | None = None
    caveats: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    head: Head | None = None
    epsilon_ledger: float | None = None
    time: str | None = None

    @classmethod
    def of(
        cls,
        event: DpEvent,
        *,
        purpose: str,
        delta: float,
        unit: str = "record",
        relation: Relation = Relation.ADD_REMOVE,
        private: bool = True,
        planned: DpEvent | None = None,
        dataset: str | None = None,
        plan: Mapping[str, Any] | None = None,
        eta: float | None = None,
        caveats: Sequence[str] = (),
        head: Head | None = None,
        epsilon_ledger: float | None = None,
        time: str | None = None,
    ) -> Certificate:
        """Priced here and now; `head` names the ledger's entry, without which a caveat says so."""
        delta = _validate.delta("delta", delta)
        own = [] if private else [SEEDED]
        own += [] if head else [UNRECORDED]
        prices = Prices.of(event, delta, relation=Relation(relation), planned=planned)
        own += [] if planned is None else [f"{STOPPED}; {_smaller(prices)}"]
        return cls(
            purpose=purpose,
            unit=unit,
            relation=Relation(relation),
            delta=delta,
            event=event,
            prices=prices,
            private=private,
            planned=planned,
            dataset=dataset,
            plan=dict(plan or {}),
            eta=eta,
            caveats=(*own, *caveats),
            versions=versions(),
            head=head,
            epsilon_ledger=epsilon_ledger,
            time=time,
        )

    def recompute(self) -> Prices:
        """ε by each accountant, from the events alone."""
        return Prices.of(self.event, self.delta, relation=self.relation, planned=self.planned)

    def verify(self) -> Prices:
        """The recomputed prices; NotPrivate if the stated ones are not those, or the seeding is kept quiet."""
        found = self.recompute()
        for name in ("pld", "rdp"):
            stated, computed = getattr(self.prices, name), getattr(found, name)
            if not _agree(stated, computed):
                raise NotPrivate(
                    f"expected the certificate to state {name} epsilon={computed}, as its events cost, "
                    f"got {name} epsilon={stated}; do not rely on it"
                )
        if not self.private and SEEDED not in self.caveats:
            raise NotPrivate("expected a seeded run's certificate to say so, got none of that in its caveats")
        if self.planned is not None:
            self._check_stop(self.planned)
        return found

    def _check_stop(self, planned: DpEvent) -> None:
        if not part_of(self.event, planned):
            raise NotPrivate("expected a run that was stopped early to be a part of its plan, got another")
        if not any(caveat.startswith(STOPPED) for caveat in self.caveats):
            raise NotPrivate("expected the certificate of a run that was stopped early to say so, got none")

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "purpose": self.purpose,
            "unit": self.unit,
            "relation": str(self.relation),
            "delta": self.delta,
            "epsilon": {"pld": self.prices.pld, "rdp": self.prices.rdp, "ledger": self.epsilon_ledger},
            "epsilon_means": {
                "pld": "this release, exact for a plan fixed in advance",
                "rdp": "this release, by Rényi divergences",
                "ledger": "everything charged to the ledger so far, however adaptively",
            },
            "private": self.private,
            "event": event_to_json(self.event),
            "planned": None if self.planned is None else event_to_json(self.planned),
            "dataset": self.dataset,
            "plan": dict(self.plan),
            "eta": self.eta,
            "caveats": list(self.caveats),
            "versions": dict(self.versions),
            "ledger": self.head.to_json() if self.head else None,
            "time": self.time,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Certificate:
        if data.get("format") != FORMAT:
            raise InvalidInput(f"expected a certificate of format {FORMAT}, got format={data.get('format')!r}")
        try:
            return cls._parse(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"expected a complete certificate, got one without {error}") from error

    @classmethod
    def _parse(cls, data: Mapping[str, Any]) -> Certificate:
        prices = data["epsilon"]
        return cls(
            purpose=data["purpose"],
            unit=data["unit"],
            relation=Relation(data["relation"]),
            delta=_validate.delta("delta", data["delta"]),
            event=event_from_json(data["event"]),
            prices=Prices(pld=prices["pld"], rdp=prices["rdp"]),
            private=data["private"],
            planned=event_from_json(data["planned"]) if data.get("planned") else None,
            dataset=data.get("dataset"),
            plan=data["plan"],
            eta=data["eta"],
            caveats=tuple(data["caveats"]),
            versions=data["versions"],
            head=Head.from_json(data["ledger"]) if data["ledger"] else None,
            epsilon_ledger=prices["ledger"],
            time=data["time"],
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Whole or not at all."""
        target = Path(path)
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Certificate:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidInput(f"expected {os.fspath(path)} to be a certificate in JSON: {error}") from error
        if not isinstance(data, dict):
            raise InvalidInput(f"expected {os.fspath(path)} to hold one JSON object, got {type(data).__name__}")
        return cls.from_json(data)


def _smaller(prices: Prices) -> str:
    pld, rdp = (math.inf if value is None else value for value in (prices.pld, prices.rdp))
    return "the smaller here is " + ("pld" if pld <= rdp else "rdp")


def _agree(stated: float | None, computed: float | None) -> bool:
    if stated is None or computed is None:
        return stated is computed
    return math.isclose(stated, computed, rel_tol=_SLACK, abs_tol=1e-9)


def versions() -> dict[str, str]:
    """What computed the release: Python and the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
