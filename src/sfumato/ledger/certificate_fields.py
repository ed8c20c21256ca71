"""What a certificate's fields may hold: each is checked before anything is computed from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sfumato import _validate
from sfumato.accounting import (
    Budget,
    DpEvent,
    PrivacyFilter,
    Relation,
    epsilon,
    event_from_json,
    rdp_epsilon,
)
from sfumato.accounting.events import with_norm_bound
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.ledger.chain import Head
from sfumato.ledger.documents import CERTIFICATE, refuse_others
from sfumato.ledger.signing import FIELD

FORMAT = 1
MEANS = {
    "pld": "this release, exact for a plan fixed in advance",
    "rdp": "this release, by Rényi divergences",
    "ledger": "everything charged to the ledger so far, however adaptively",
}


@dataclass(frozen=True, kw_only=True)
class Prices:
    """ε of one event at one δ by each accountant; None where an accountant gives no finite figure.

    Attributes:
        pld: ε by privacy loss distributions: tight, for a plan fixed in advance.
        rdp: ε by Rényi differential privacy: looser, a cross-check.
    """

    pld: float | None  # exact, for what was fixed in advance
    rdp: float | None

    def __post_init__(self) -> None:
        for name in ("pld", "rdp"):
            _price(f"{name} epsilon", getattr(self, name))

    @classmethod
    def of(cls, event: DpEvent, delta: float, *, relation: Relation, planned: DpEvent | None = None) -> Prices:
        """Price an event, or what ran of a plan that was stopped early.

        Args:
            event: What ran.
            delta: The δ at which ε is wanted.
            relation: Which data sets are neighbours.
            planned: The whole plan, if the run was stopped early.

        Returns:
            Both prices.

        >>> from sfumato.accounting import GaussianEvent
        >>> prices = Prices.of(GaussianEvent(4.530877), 1e-6, relation=Relation.ADD_REMOVE)
        >>> round(prices.pld, 4), round(prices.rdp, 3)
        (0.9274, 1.0)
        """
        event = with_norm_bound(event)
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


def parsed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a certificate by their names there; InvalidInput where one is not of its kind."""
    refuse_others(data, CERTIFICATE)
    if data.get("format") != FORMAT or isinstance(data.get("format"), bool):
        raise _unexpected("format", f"{FORMAT}", data.get("format"))
    unknown = set(data) - {"format", "epsilon", "epsilon_means", FIELD, *_FIELDS, *_LATER}
    if unknown:
        raise InvalidInput(f"expected the fields of a certificate, got {_validate.shown(min(unknown))} besides")
    for name in ("epsilon", "epsilon_means", *_FIELDS):
        if name not in data:
            raise InvalidInput(f"expected a complete certificate, got one without {name}")
    if data["epsilon_means"] != MEANS:
        raise _unexpected("epsilon_means", "the sentences of this format", data["epsilon_means"])
    fields = {own: read(name, data[name]) for name, (own, read) in _FIELDS.items()}
    fields |= {
        name: None if data.get(name) is None else read(name, data[name]) for name, read in _LATER.items()
    }
    return {**fields, **_prices(data["epsilon"]), "signature": data.get(FIELD)}


def _prices(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(MEANS):
        raise _unexpected("epsilon", "an object of pld, rdp and ledger", value)
    _price("ledger epsilon", value["ledger"])
    return {"prices": Prices(pld=value["pld"], rdp=value["rdp"]), "epsilon_ledger": value["ledger"]}


def _price(name: str, value: Any) -> None:
    if value is not None:
        _validate.non_negative(name, value)


def _text(name: str, value: Any) -> str:
    return _validate.text(name, value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _unexpected(name, "a list of sentences", value)
    return tuple(_text(name, item) for item in value)


def _named_texts(name: str, value: Any) -> dict[str, str]:
    return {_text(name, key): _text(name, item) for key, item in _object(name, value).items()}


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unexpected(name, "an object", value)
    return value


def _relation(name: str, value: Any) -> Relation:
    return Relation(_validate.one_of(name, value, [str(relation) for relation in Relation]))


def _delta(name: str, value: Any) -> float:
    _validate.delta(name, value)
    return value  # as it was written, for the signature


def _eta(name: str, value: Any) -> float | None:
    if value is not None:
        _validate.non_negative(name, value)
    return value


def _bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unexpected(name, "true or false", value)
    return value


def _event(name: str, value: Any) -> DpEvent:
    return event_from_json(value)


def _head(name: str, value: Any) -> Head | None:
    if value is None:
        return None
    if set(_object(name, value)) != {"sequence", "hash"}:
        raise _unexpected(name, "an object of sequence and hash", value)
    digest = value["hash"]
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise _unexpected("hash", "64 hexadecimal digits", digest)
    return Head(sequence=_validate.integer("sequence", value["sequence"]), hash=digest)


def _time(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        datetime.fromisoformat(_text(name, value))
    except ValueError as error:
        raise _unexpected(name, "a time as in 2026-01-31T12:00:00+00:00", value) from error
    return value


def _unexpected(name: str, expected: str, value: Any) -> InvalidInput:
    return InvalidInput(f"expected {name} to be {expected}, got {name}={_validate.shown(value)}")


_FIELDS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "purpose": ("purpose", _text),
    "unit": ("unit", _text),
    "relation": ("relation", _relation),
    "delta": ("delta", _delta),
    "private": ("private", _bool),
    "event": ("event", _event),
    "plan": ("plan", _object),
    "eta": ("eta", _eta),
    "caveats": ("caveats", _texts),
    "versions": ("versions", _named_texts),
    "ledger": ("head", _head),
    "time": ("time", _time),
}
_LATER: dict[str, Callable[[str, Any], Any]] = {"planned": _event, "dataset": _text}
"""What certificates of the first version do not have."""
