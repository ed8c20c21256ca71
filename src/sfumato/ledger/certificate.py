"""Certificates: published beside a release, so that every reader can recompute its ε."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, Literal

from sfumato import _validate
from sfumato.accounting import (
    Budget,
    DpEvent,
    PrivacyFilter,
    Relation,
    check_affordable,
    epsilon,
    event_from_json,
    event_to_json,
    protection_warning,
    rdp_epsilon,
)
from sfumato.accounting.events import check_norm_bound
from sfumato.caveats import Caveat, Code, as_caveats, codes
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.ledger.chain import Digest, Head
from sfumato.ledger.documents import CERTIFICATE, refuse_others
from sfumato.ledger.rule import part_of
from sfumato.ledger.signing import FIELD, PrivateKey, PublicKey, environment_key, signer
from sfumato.schema import Count, Delta, Epsilon, Json, Model, Words, read, read_file
from sfumato.storage import write_whole

PURPOSE = "certificate"  # of a signature
_PACKAGES = ("sfumato", "dp-accounting", "numpy", "scipy", "torch", "opendp", "randomgen")
FORMAT = 1
MEANS = {
    "pld": "this release, exact for a plan fixed in advance",
    "rdp": "this release, by Rényi divergences",
    "ledger": "everything charged to the ledger so far, however adaptively",
}
_SLACK = 1e-4  # relative: versions of the accountant discretise otherwise
_COARSER = 0.1  # and older ones had coarser grids, which only err upward
_COARSE = 1e-2


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Hold ε of one event at one δ by each accountant; None where an accountant gives no finite figure.

    Attributes:
        pld: ε by privacy loss distributions: tight, for a plan fixed in advance.
        rdp: ε by Rényi differential privacy: looser, a cross-check.
    """

    pld: float | None
    rdp: float | None

    def __post_init__(self) -> None:
        for name, value in (("pld epsilon", self.pld), ("rdp epsilon", self.rdp)):
            if value is not None:
                _validate.non_negative(name, value)

    @classmethod
    def of(cls, event: DpEvent, delta: float, *, relation: Relation, planned: DpEvent | None = None) -> Prices:
        """Return both prices of an event, or of the part that ran of a plan that was stopped early.

        >>> from sfumato.accounting import GaussianEvent
        >>> prices = Prices.of(GaussianEvent(4.530877), 1e-6, relation=Relation.ADD_REMOVE)
        >>> round(prices.pld, 4), round(prices.rdp, 3)
        (0.9274, 1.0)
        """
        check_norm_bound(event, relation)
        if planned is not None:
            whole = cls.of(planned, delta, relation=relation)
            return cls(pld=whole.pld, rdp=_odometer(event, whole, delta, relation))
        return cls(
            pld=_finite(epsilon, event, delta, relation), rdp=_finite(rdp_epsilon, event, delta, relation)
        )

    @property
    def epsilon(self) -> float:
        """The smaller of both figures, as each holds; infinite without any."""
        return min((value for value in (self.pld, self.rdp) if value is not None), default=math.inf)


def _finite(accountant: Any, event: DpEvent, delta: float, relation: Relation) -> float | None:
    try:
        value = float(accountant(event, delta, relation=relation))
    except (NotPrivate, ValueError, ArithmeticError, MemoryError, RecursionError):
        return None  # no figure is no promise
    return value if math.isfinite(value) else None


def _odometer(event: DpEvent, whole: Prices, delta: float, relation: Relation) -> float | None:
    """Compute ε of the part of a plan that ran, valid however its end was chosen.

    It is the filter's, at orders that the plan fixes.

    At a fixed order exp((α−1)(L_t − ρ_t)) is a supermartingale, L_t the loss and ρ_t the divergence of the
    first t releases. So the conversion holds at any time t of their end (Feldman & Zrnic 2021).
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
    """State the privacy of a release: unit, relation, events, ε, and caveats.

    It states nothing that was read off private data, no hash and no size of it. The figures are for readers;
    `verify` relies on the events only, and computes the figures again. `Certificate.of` fills in prices and
    versions.

    Args:
        purpose: The release, in one line.
        unit: The unit that is protected.
        relation: The neighbouring relation.
        delta: The δ at which the prices hold.
        event: The releases that ran.
        prices: ε of the event by each accountant.
        private: False if noise was seeded or something was read off the data.
        planned: The whole plan of a run that was stopped early.
        dataset: The declared id of the data set, if it has one.
        plan: The settings of the run.
        eta: η, the bound of rounding errors that the noise was scaled up for.
        caveats: Limits of the guarantee.
        versions: The versions of the packages that ran.
        head: The entry of the ledger where the release was charged.
        epsilon_ledger: ε of all charges of the ledger up to this one.
        time: When it was charged.
        signature: The signature that `signed` adds.

    Terms:
        reserved: The entry that holds the whole plan, of a run that is not settled yet.
        key: The holder's private key.
        part: The certificate of an object that was made under the charge of this release.
        data: A dictionary of `to_json`.
        path: The file's name.

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
    planned: DpEvent | None = None
    dataset: str | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    eta: float | None = None
    caveats: tuple[Caveat, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    head: Head | None = None
    epsilon_ledger: float | None = None
    time: str | None = None
    signature: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Refuse texts that `from_json` would refuse; sentences become caveats."""
        for name in ("purpose", "unit", "dataset"):
            if getattr(self, name) is not None:
                _validate.text(name, getattr(self, name))
        object.__setattr__(self, "caveats", as_caveats(self.caveats))

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
        reserved: Head | None = None,
    ) -> Certificate:
        """Return a certificate with prices computed here and now."""
        delta = _validate.delta("delta", delta)
        own = [] if private else [Code.SEEDED()]
        if head is None:
            own.append(Code.UNRECORDED() if reserved is None else Code.RESERVED(entry=reserved.sequence))
        prices = Prices.of(event, delta, relation=Relation(relation), planned=planned)
        own += [] if planned is None else [Code.STOPPED_EARLY(smaller=_smaller(prices))]
        made = cls(
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
            caveats=(*own, *as_caveats(caveats)),
            versions=dict(_installed()),
            head=head,
            epsilon_ledger=epsilon_ledger,
            time=time,
        )
        if made.warning is not None:
            made = replace(made, caveats=(made.warning, *made.caveats))
        return _signed(made)

    @property
    def warning(self) -> Caveat | None:
        """One sentence where (ε, δ) promises practically no protection."""
        return protection_warning(self.prices.epsilon, self.delta)

    def signed(self, key: PrivateKey) -> Certificate:
        """Return the same certificate with a signature over all its fields."""
        return replace(self, signature=key.sign(PURPOSE, self.to_json())[FIELD])

    def with_part(self, part: Certificate) -> Certificate:
        """Return the certificate with the caveats of a part of the release too; private only if both are."""
        own = (Code.UNRECORDED, Code.NO_PROTECTION, Code.STOPPED_EARLY)
        both = replace(self, private=self.private and part.private)
        return both.with_caveats([caveat for caveat in part.caveats if caveat.code not in own])

    def with_caveats(self, caveats: Sequence[str]) -> Certificate:
        """Return the certificate with further caveats, signed anew if SFUMATO_KEY names a key."""
        known = [caveat for caveat in self.caveats if caveat.code is not Code.UNSIGNED]
        return _signed(
            replace(self, caveats=tuple(dict.fromkeys((*known, *as_caveats(caveats)))), signature=None)
        )

    @property
    def signer(self) -> PublicKey | None:
        """The key of its signature; NotVerified where that does not fit."""
        return signer(PURPOSE, self.to_json())

    def recompute(self) -> Prices:
        """Return ε by each accountant, from the events alone; InvalidInput if that would take too long."""
        for event in (self.event, self.planned):
            if event is not None:
                check_affordable(event)
        return Prices.of(self.event, self.delta, relation=self.relation, planned=self.planned)

    def verify(self) -> Prices:
        """Return the prices, computed again and compared with the stated ones.

        Raises:
            NotPrivate: If other prices are stated, or a caveat that must be stated is missing.
        """
        found = self.recompute()
        if found.pld is None and found.rdp is None:
            raise NotPrivate(
                "expected events for which some accountant gives a finite epsilon, got none; "
                "nothing bounds the loss of this release"
            )
        for name in ("pld", "rdp"):
            stated, computed = getattr(self.prices, name), getattr(found, name)
            if not _agree(stated, computed):
                raise NotPrivate(
                    f"expected the certificate to state {name} epsilon={computed}, as its events cost, "
                    f"got {name} epsilon={stated}; do not rely on it"
                )
        if not self.private and Code.SEEDED not in codes(self.caveats):
            raise NotPrivate("expected a seeded run's certificate to say so, got none of that in its caveats")
        if self.planned is not None:
            self._check_stop(self.planned)
        self._check_ledger(found)
        return found

    def _check_stop(self, planned: DpEvent) -> None:
        if not part_of(self.event, planned):
            raise NotPrivate("expected a run that was stopped early to be a part of its plan, got another")
        if Code.STOPPED_EARLY not in codes(self.caveats):
            raise NotPrivate("expected the certificate of a run that was stopped early to say so, got none")

    def _check_ledger(self, found: Prices) -> None:
        """A ledger's ε counts this release and all before it."""
        if (self.head is None) != (self.epsilon_ledger is None):
            raise NotPrivate("expected a ledger entry and its epsilon together, got one without the other")
        if self.epsilon_ledger is not None and self.epsilon_ledger < found.epsilon * (1 - _COARSE):
            raise NotPrivate(
                f"expected ledger epsilon >= {found.epsilon:g}, which this release alone costs, "
                f"got ledger epsilon={self.epsilon_ledger:g}; do not rely on it"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as a dictionary for `json.dumps`."""
        data = {
            "format": FORMAT,
            "purpose": self.purpose,
            "unit": self.unit,
            "relation": str(self.relation),
            "delta": self.delta,
            "epsilon": {"pld": self.prices.pld, "rdp": self.prices.rdp, "ledger": self.epsilon_ledger},
            "epsilon_means": MEANS,
            "private": self.private,
            "event": event_to_json(self.event),
            "planned": None if self.planned is None else event_to_json(self.planned),
            "dataset": self.dataset,
            "plan": dict(self.plan),
            "eta": self.eta,
            "caveats": [caveat.to_json() for caveat in self.caveats],
            "versions": dict(self.versions),
            "ledger": self.head.to_json() if self.head else None,
            "time": self.time,
        }
        return data if self.signature is None else {**data, FIELD: dict(self.signature)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Certificate:
        """Return the certificate in `data`: every field of its type, and no signature or one that fits.

        Raises:
            InvalidInput: If a field is not of its type.
            NotVerified: If it carries a signature that does not fit.
        """
        refuse_others(data, CERTIFICATE)
        file: _File = read(_File, data, name="")
        if file.epsilon_means != MEANS:
            raise InvalidInput("expected epsilon_means to be the sentences of this format, got others")
        if file.time is not None:
            _check_time(file.time)
        signer(PURPOSE, data)  # of the very text that was read

        def as_written(checked: float | None, value: Any) -> Any:
            """Return a number as the signature covers it: an integer stays one."""
            return None if checked is None else value

        costs = data["epsilon"]
        return cls(
            purpose=file.purpose,
            unit=file.unit,
            relation=file.relation,
            delta=data["delta"],
            event=event_from_json(file.event),
            prices=Prices(pld=costs["pld"], rdp=costs["rdp"]),
            private=file.private,
            planned=None if file.planned is None else event_from_json(file.planned),
            dataset=file.dataset,
            plan=data["plan"],
            eta=as_written(file.eta, data["eta"]),
            caveats=tuple(Caveat.from_json(item) for item in data["caveats"]),
            versions=file.versions,
            head=None if file.ledger is None else Head(sequence=file.ledger.sequence, hash=file.ledger.hash),
            epsilon_ledger=as_written(file.epsilon.ledger, costs["ledger"]),
            time=file.time,
            signature=file.signature,
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all, readable by all users."""
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_whole(path, text.encode(), readable=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Certificate:
        """Return the certificate in a file that `write` wrote."""
        return cls.from_json(read_file(path, "a certificate"))


def check_statable(plan: Mapping[str, Any] | None, caveats: Sequence[str]) -> None:
    """Raise InvalidInput before a charge for a plan or caveats that no certificate can state."""
    as_caveats(caveats)
    try:
        json.dumps(dict(plan or {}), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"expected a plan that can be written as JSON, got one that cannot: {error}"
        ) from error


def _check_time(text: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"expected time to be a time as in 2026-01-31T12:00:00+00:00, got time={_validate.shown(text)}"
        ) from error


def _signed(certificate: Certificate) -> Certificate:
    """Sign with the key that SFUMATO_KEY names, if it names one.

    A release is charged by now: a key that cannot be used costs the signature, not the release.
    """
    try:
        key = environment_key()
        return certificate if key is None else certificate.signed(key)
    except (OSError, InvalidInput):
        return replace(certificate, caveats=(*certificate.caveats, Code.UNSIGNED()))


def _smaller(prices: Prices) -> str:
    pld, rdp = (math.inf if value is None else value for value in (prices.pld, prices.rdp))
    return "pld" if pld <= rdp else "rdp"


def _agree(stated: float | None, computed: float | None) -> bool:
    """Return whether a figure is at least the computed one, and little more: older grids were coarser."""
    if stated is None or computed is None:
        return stated is computed
    return computed * (1 - _SLACK) - 1e-9 <= stated <= computed * (1 + _COARSER) + 1e-9


@cache  # reading it anew from the packages' files would take longer than all the rest of a certificate
def _installed() -> dict[str, str]:
    from importlib import metadata

    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


# Reading


class _Figures(Model):
    pld: Epsilon | None
    rdp: Epsilon | None
    ledger: Epsilon | None


class _Head(Model):
    sequence: Count
    hash: Digest


class _File(Model):
    """The fields of a certificate's file."""

    format: Literal[1]
    purpose: Words
    unit: Words
    relation: Relation
    delta: Delta
    epsilon: _Figures
    epsilon_means: dict[str, str]
    private: bool
    event: Json
    planned: Json
    dataset: Words | None
    plan: dict[str, Json]
    eta: Epsilon | None
    caveats: tuple[Json, ...]
    versions: dict[Words, Words]
    ledger: _Head | None
    time: Words | None
    signature: Json = None


@dataclass(frozen=True, kw_only=True)
class Unrecorded:
    """Certify releases at `delta` without a ledger: each certificate says that none was charged.

    Args:
        delta: The δ at which certificates state ε.

    >>> from sfumato.accounting import pure
    >>> terms = {"purpose": "a count", "relation": Relation.ADD_REMOVE, "unit": "record"}
    >>> Unrecorded(delta=0).pay_for(pure(0.5), **terms).caveats[0][:25]
    'not entered in a ledger: '
    """

    delta: float

    def __post_init__(self) -> None:
        _validate.delta("delta", self.delta)

    def pay_for(
        self,
        event: DpEvent,
        *,
        purpose: str,
        relation: Relation,
        unit: str,
        private: bool = True,
        planned: DpEvent | None = None,
        plan: Mapping[str, Any] | None = None,
        eta: float | None = None,
        caveats: Sequence[str] = (),
        reserved: Head | None = None,
    ) -> Certificate:
        """Return the certificate of one release."""
        check_statable(plan, caveats)
        return Certificate.of(
            event,
            purpose=purpose,
            delta=self.delta,
            unit=unit,
            relation=relation,
            private=private,
            planned=planned,
            plan=plan,
            eta=eta,
            caveats=caveats,
            reserved=reserved,
        )
