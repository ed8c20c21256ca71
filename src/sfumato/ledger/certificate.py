"""What is published beside a release, so that anyone can recompute its ε."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from typing import Any

from sfumato import _validate
from sfumato.accounting import (
    DpEvent,
    Relation,
    check_affordable,
    event_to_json,
    protection_warning,
)
from sfumato.accounting.events import check_norm_bound
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.ledger.certificate_fields import FORMAT, MEANS, Prices, parsed
from sfumato.ledger.chain import Head
from sfumato.ledger.charge import part_of
from sfumato.ledger.signing import FIELD, PrivateKey, PublicKey, environment_key, signer
from sfumato.ledger.strict_json import read_object
from sfumato.storage import write_whole

PURPOSE = "certificate"  # of a signature
SEEDED = "not private: the noise came from a seeded stream, and whoever knows the seed can subtract it"
UNSIGNED = "not signed: the key that SFUMATO_KEY names could not be used"
STOPPED = (
    "stopped early: how much of the plan ran was decided while it ran, so the exact price of the shorter plan "
    "does not hold; pld is that of the whole plan, rdp that of what ran by a filter at orders fixed before; "
    "each holds however the stop was decided"
)
RESERVED = (
    "reserved as entry {entry} of a ledger, and not settled: the whole plan counts there; call finish(), and "
    "take the certificate then"
)
UNRECORDED = "not entered in a ledger: other releases from the same data are not counted here"
_PACKAGES = ("sfumato", "dp-accounting", "numpy", "scipy", "torch", "opendp", "randomgen")
_SLACK = 1e-4  # relative: versions of the accountant discretise otherwise
_COARSER = 0.1  # and older ones had coarser grids, which only err upward
_COARSE = 1e-2


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A release's claim to privacy: whose, under which relation, by which events, at which ε, and caveats.

    States nothing that was read off private data, no hash and no size of it. The figures are for readers;
    `verify` believes the events only, and computes the figures again. `Certificate.of` fills in prices and
    versions.

    Args:
        purpose: What was released, in one line.
        unit: Who is protected.
        relation: Which data sets are neighbours.
        delta: The δ at which the prices hold.
        event: What ran.
        prices: ε of the event by each accountant.
        private: False if noise was seeded or something was read off the data.
        planned: The whole plan of a run that was stopped early.
        dataset: The declared id of the data set, if it has one.
        plan: The settings of the run.
        eta: η, the bound of rounding errors that the noise was scaled up for.
        caveats: What a reader must know besides, in sentences.
        versions: The versions of the packages that ran.
        head: The entry of the ledger where the release was charged.
        epsilon_ledger: ε of all charges of the ledger up to this one.
        time: When it was charged.
        signature: What `signed` adds.

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
    signature: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Refuse texts that `from_json` would refuse: no certificate is written that nobody can read."""
        for name in ("purpose", "unit", "dataset"):
            if getattr(self, name) is not None:
                _validate.text(name, getattr(self, name))
        for caveat in self.caveats:
            _validate.text("caveats", caveat)

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
        """Make a certificate with prices computed here and now.

        Args:
            event: What ran.
            purpose: What was released, in one line.
            delta: The δ at which it is priced.
            unit: Who is protected.
            relation: Which data sets are neighbours.
            private: False if noise was seeded or something was read off the data.
            planned: The whole plan of a run that was stopped early.
            dataset: The declared id of the data set.
            plan: The settings of the run.
            eta: η, the bound of rounding errors that the noise was scaled up for.
            caveats: What a reader must know besides, in sentences.
            head: The ledger's entry; without one a caveat says so.
            epsilon_ledger: ε of all charges of the ledger up to this one.
            time: When it was charged.
            reserved: The entry that holds the whole plan, of a run that is not settled yet.

        Returns:
            The certificate.
        """
        delta = _validate.delta("delta", delta)
        if head is None:  # what a ledger holds was looked at when it was charged
            check_norm_bound(event, Relation(relation))
        own = [] if private else [SEEDED]
        own += [] if head else [UNRECORDED if reserved is None else RESERVED.format(entry=reserved.sequence)]
        prices = Prices.of(event, delta, relation=Relation(relation), planned=planned)
        own += [] if planned is None else [f"{STOPPED}; {_smaller(prices)}"]
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
            caveats=(*own, *_validate.sentences("caveats", caveats)),
            versions=versions(),
            head=head,
            epsilon_ledger=epsilon_ledger,
            time=time,
        )
        if made.warning is not None:
            made = replace(made, caveats=(made.warning, *made.caveats))
        return _signed(made)

    @property
    def warning(self) -> str | None:
        """One sentence where (ε, δ) promises practically no protection."""
        return protection_warning(self.prices.epsilon, self.delta)

    def signed(self, key: PrivateKey) -> Certificate:
        """The same certificate, signed over all that it says.

        Args:
            key: The holder's private key.

        Returns:
            The same certificate with a signature over all that it says.
        """
        return replace(self, signature=key.sign(PURPOSE, self.to_json())[FIELD])

    def with_part(self, part: Certificate) -> Certificate:
        """The same certificate with what the certificate of one part of the release says besides.

        Args:
            part: The certificate of something that was made under this charge, and says what it was made with.

        Returns:
            The certificate with the caveats of both; private only if both are.
        """
        told = [caveat for caveat in part.caveats if caveat not in (UNRECORDED, part.warning)]
        both = replace(self, private=self.private and part.private)
        return both.with_caveats([caveat for caveat in told if not caveat.startswith(STOPPED)])

    def with_caveats(self, caveats: Sequence[str]) -> Certificate:
        """The same certificate with further sentences, signed anew if it is to be signed.

        Args:
            caveats: The sentences; those that it states already are not repeated.

        Returns:
            The certificate.
        """
        all_of_them = dict.fromkeys((*self.caveats, *_validate.sentences("caveats", caveats)))
        all_of_them.pop(UNSIGNED, None)
        return _signed(replace(self, caveats=tuple(all_of_them), signature=None))

    @property
    def signer(self) -> PublicKey | None:
        """Whose signature it carries; NotVerified where that does not fit."""
        return signer(PURPOSE, self.to_json())

    def recompute(self) -> Prices:
        """Compute ε by each accountant, from the events alone.

        Returns:
            The prices.

        Raises:
            InvalidInput: If that would take too long.
        """
        for event in (self.event, self.planned):
            if event is not None:
                check_affordable(event)
        return Prices.of(self.event, self.delta, relation=self.relation, planned=self.planned)

    def verify(self) -> Prices:
        """Compute the prices again and compare them with what is stated.

        Returns:
            The prices that were computed.

        Raises:
            NotPrivate: If other prices are stated, or a caveat that must be stated is missing.
        """
        found = self.recompute()
        if found.pld is None and found.rdp is None:
            raise NotPrivate(
                "expected events for which some accountant gives a finite epsilon, got none; "
                "nothing bounds what this release tells"
            )
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
        self._check_ledger(found)
        return found

    def _check_stop(self, planned: DpEvent) -> None:
        if not part_of(self.event, planned):
            raise NotPrivate("expected a run that was stopped early to be a part of its plan, got another")
        if not any(caveat.startswith(STOPPED) for caveat in self.caveats):
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
        """Give the certificate as a dictionary for `json.dumps`.

        Returns:
            The dictionary.
        """
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
            "caveats": list(self.caveats),
            "versions": dict(self.versions),
            "ledger": self.head.to_json() if self.head else None,
            "time": self.time,
        }
        return data if self.signature is None else {**data, FIELD: dict(self.signature)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Certificate:
        """The certificate in `data`: every field of its type, and no signature or one that fits.

        Args:
            data: What `to_json` gave.

        Returns:
            The certificate.

        Raises:
            InvalidInput: If a field is not of its type.
            NotVerified: If it carries a signature that does not fit.
        """
        found = parsed(data)
        signer(PURPOSE, data)  # of the very text that was read
        return cls(**found)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all, for everybody to read.

        Args:
            path: The file's name.
        """
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_whole(path, text.encode(), readable=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read a file that `write` wrote.

        Args:
            path: The file's name.

        Returns:
            The certificate.
        """
        return cls.from_json(read_object(path, "a certificate"))


def check_statable(plan: Mapping[str, Any] | None, caveats: Sequence[str]) -> None:
    """Raise InvalidInput for what no certificate can state; for before the charge."""
    _validate.sentences("caveats", caveats)
    try:
        json.dumps(dict(plan or {}), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"expected a plan that can be written as JSON, got one that cannot: {error}"
        ) from error


def _signed(certificate: Certificate) -> Certificate:
    """Signed with the key that SFUMATO_KEY names; without one the certificate says nothing of it.

    A release is charged by now: a key that cannot be used costs the signature, not the release.
    """
    try:
        key = environment_key()
        return certificate if key is None else certificate.signed(key)
    except (OSError, InvalidInput):
        return replace(certificate, caveats=(*certificate.caveats, UNSIGNED))


def _smaller(prices: Prices) -> str:
    pld, rdp = (math.inf if value is None else value for value in (prices.pld, prices.rdp))
    return "the smaller here is " + ("pld" if pld <= rdp else "rdp")


def _agree(stated: float | None, computed: float | None) -> bool:
    """Never less than computed; a little more where an older accountant had a coarser grid."""
    if stated is None or computed is None:
        return stated is computed
    return computed * (1 - _SLACK) - 1e-9 <= stated <= computed * (1 + _COARSER) + 1e-9


def versions() -> dict[str, str]:
    """What computed the release: Python and the packages that are installed."""
    return dict(_installed())


@cache  # reading it anew from the packages' files would take longer than all the rest of a certificate
def _installed() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
