"""Studies: files that state everything that affects privacy, which all holders sign.

The TOML file of a training has a section `study` with the fields of `Study`, and `dropped` and `colluding` of
its parties; a section `holders` with a name and a key of each, in the order of their places, where a key is the
middle line of the .pub file from `sfumato key create`; and maybe a section `network` with the fields of
`NetworkTerms`, or, with data = "table", a section `table`: `target`, `rows` (of one unit that count, at most)
and `columns`, which each holder's own policy must declare as well. docs/how-to/holders.md shows examples.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta

from sfumato import _validate, accounting
from sfumato.accounting import DpEvent, Relation
from sfumato.caveats import Caveat, Code
from sfumato.errors import BudgetExceeded, InvalidInput, NotVerified
from sfumato.holders.masks import Modulus
from sfumato.holders.parties import Parties
from sfumato.holders.rounds import Signed, Terms
from sfumato.holders.tasks import TABLE, Images, Network, NetworkTerms, Table, TableTerms
from sfumato.ledger import Ledger
from sfumato.ledger.chain import canonical
from sfumato.ledger.signing import PrivateKey, PublicKey, signer
from sfumato.mechanisms import GaussianShares
from sfumato.schema import Count, Model, Positive, Whole, Words, read, read_file
from sfumato.storage import json_bytes, write_new
from sfumato.training import NoiseShares, Optimization, TrainingPlan

RELATION = Relation.ADD_REMOVE
_PURPOSE = "holders study"
_LARGEST_FILE, _LARGEST_SIGNATURE = 2**20, 2**14  # in bytes
_PREFIX = bytes.fromhex("302a300506032b6570032100")  # of every Ed25519 key in such a file (RFC 8410)


class Agreed(ABC):
    """A study of any kind: its holders by name, in the order of their places, its price and its digest."""

    name: str
    unit: str
    delta: float
    parties: Parties
    keys: Mapping[str, PublicKey]

    @property
    @abstractmethod
    def digest(self) -> str:
        """The digest of everything that the study says or implies, the order of the holders included."""

    @abstractmethod
    def event(self, shares: int | None = None) -> DpEvent:
        """Return the event of all rounds, against an adversary that does not know `shares` shares of noise.

        Args:
            shares: Number of unknown shares; by default those that the best informed adversary does not know.
        """

    def epsilons(self) -> dict[str, float]:
        """Return ε against each adversary, after all declared drop-outs."""
        return {
            name: accounting.epsilon(self.event(count), self.delta, relation=RELATION)
            for name, count in self.parties.shares_against.items()
        }

    def check_room(self, ledger: Ledger) -> None:
        """Raise the error that charging the study would raise; nothing is charged."""
        ledger.check(self.event(), relation=RELATION, unit=self.unit)

    def caveats(self) -> tuple[Caveat, ...]:
        """Return the caveats of a holder's certificate."""
        parties = self.parties
        counts = {name: getattr(parties, name) for name in ("holders", "counted", "dropped", "colluding")}
        against = ", ".join(f"{name} {value:.3g}" for name, value in self.epsilons().items())
        return (
            Code.NOISE_BY_HOLDERS(**counts),
            Code.EACH_ADVERSARY(delta=self.delta, epsilons=against),
            Code.LYING_HOLDER(),
        )

    def signed(self, key: PrivateKey) -> Signed:
        """Return a holder's agreement."""
        return key.sign(_PURPOSE, {"study": self.digest})

    def check_signatures(self, signatures: Collection[Signed]) -> None:
        """Raise unless every holder signed this very study."""
        found = {signer(_PURPOSE, one) for one in signatures if one.get("study") == self.digest}
        missing = [name for name, key in self.keys.items() if key not in found]
        if missing:
            raise NotVerified(
                f"expected the signature of every holder under this study, got none of {missing[0]}; all must "
                "sign the same file, with the same version of sfumato"
            )

    def place_of(self, key: PublicKey | None) -> int:
        """Return a holder's place, from 1."""
        for place, known in enumerate(self.keys.values(), 1):
            if known == key:
                return place
        raise InvalidInput("expected the key of a holder of the study, got another; ask to be put into it")

    def _keep_keys(self, *, enough: bool) -> None:
        object.__setattr__(self, "keys", MappingProxyType(dict(self.keys)))
        if not enough or len(set(self.keys.values())) != len(self.keys):
            raise InvalidInput("expected one key of each holder, all of them different, got others")


S = TypeVar("S", bound=Agreed)


@dataclass(frozen=True)
class Verified(Generic[S]):
    """A study that carries the signature of every holder; no other can be made.

    Args:
        study: The study.
        signatures: The agreement of each holder.

    Raises:
        NotVerified: If a holder has not signed this very study.

    ```python
    agreed = Verified(study, [study.signed(key) for key in keys])
    ```
    """

    study: S
    signatures: Collection[Signed]

    def __post_init__(self) -> None:
        self.study.check_signatures(self.signatures)


class _Section(Model):
    """The section `study` of a file."""

    name: Words
    data: Words
    classes: Annotated[int, Meta(ge=2, le=2**16)]
    public_size: Whole
    largest_share: Annotated[float, Meta(gt=0, le=1)]
    unit: Words
    epsilon: Positive
    delta: Annotated[float, Meta(gt=0, le=1)]
    dropped: Count
    colluding: Count
    spare: Count
    holders_per_unit: Whole = 1


class _File(Model):
    study: _Section
    holders: dict[str, str]
    network: NetworkTerms | None = None
    table: TableTerms | None = None


@dataclass(frozen=True, kw_only=True)
class Study(Agreed):
    """A head on public features, or a network on images or a table, trained by DP-SGD over several holders.

    It is agreed on as a TOML file, which `read` takes; the fields are those of the file.

    Args:
        name: The study's name in reports and ledgers.
        data: The name of a data set, which selects the recipe: features and settings of the training; or
            "table".
        classes: Number of classes, at least 2.
        public_size: About how many units all holders have together, if that may be known.
        largest_share: The share of these that one holder has at most, in (0, 1].
        unit: The unit of privacy, such as "record" or "person".
        epsilon: The ε of all rounds against the best informed adversary that `parties` declare.
        delta: Its δ, above 0.
        parties: The number of holders, and of those that may be lost or collude.
        spare: Number of rounds that may be abandoned; so many steps more are planned and priced.
        keys: The holders' public signing keys by name; a holder's place is its number in them, from 1.
        holders_per_unit: Most holders that have rows of one unit. Each of them clips and samples it.
        network: The network to train in place of the head on public features.
        table: The columns and the target, where `data` is "table".

    Raises:
        InvalidInput: If a field is outside its range, or there is not one key of each holder.

    ```python
    study = Study.read("study.toml")
    print(study.epsilons())  # against each adversary: recipient, holder, coordinator, coalition
    ```
    """

    name: str
    data: str
    classes: int
    public_size: int
    largest_share: float
    unit: str
    epsilon: float
    delta: float
    parties: Parties
    spare: int
    keys: Mapping[str, PublicKey]
    holders_per_unit: int = 1
    network: NetworkTerms | None = None
    table: Table | None = None

    def __post_init__(self) -> None:
        self._keep_keys(enough=len(self.keys) == self.parties.holders)
        if self.network is not None and self.table is not None:
            raise InvalidInput("expected a section network or a section table in a study, got both")
        if (self.data == TABLE) != (self.table is not None):
            raise InvalidInput(
                f'expected a section table with data = "{TABLE}", and with no other, got otherwise'
            )
        if self.table is not None and self.table.classes not in (None, self.classes):
            raise InvalidInput(
                f"expected classes={self.table.classes}, as the target has categories, got "
                f"classes={self.classes}"
            )

    @classmethod
    def read(cls, path: str | Path) -> Study:
        return cls.from_dict(read_study(path))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Study:
        """Read the sections `study` and `holders`, and `network` or `table` if there is one."""
        found: _File = read(_File, data, name="a study file")
        said = found.study.to_json()
        lost = {name: said.pop(name) for name in ("dropped", "colluding")}
        return cls(
            parties=Parties(holders=len(found.holders), **lost),
            keys={name: _key(name, value) for name, value in found.holders.items()},
            network=found.network,
            table=None if found.table is None else Table.of(found.table, unit=found.study.unit),
            **said,
        )

    def to_dict(self) -> dict[str, Any]:
        names = [name for name in _Section.__struct_fields__ if hasattr(self, name)]
        lost = {"dropped": self.parties.dropped, "colluding": self.parties.colluding}
        sections = {"network": self.network, "table": self.table}
        return {
            "study": {**{name: getattr(self, name) for name in names}, **lost},
            "holders": {name: _line(key) for name, key in self.keys.items()},
            **{name: section.to_json() for name, section in sections.items() if section is not None},
        }

    @cached_property
    def digest(self) -> str:
        """The digest of the file and of everything that follows from it.

        Holders whose versions of this code would clip, sample or add noise differently have different digests,
        and no round together.
        """
        follows = {
            "plan": self.plan.to_json(),
            "optimization": asdict(self.optimization),
            "task": self.task.facts(),
            "bits": self.modulus.bits,
        }
        ordered = {**self.to_dict(), "order": list(self.keys), "follows": follows}
        return hashlib.sha256(canonical(ordered)).hexdigest()

    @cached_property
    def task(self) -> Images | Network | Table:
        if self.network is not None:
            return Network(terms=self.network, classes=self.classes)
        return self.table or Images(data=self.data, classes=self.classes)

    @cached_property
    def plan(self) -> TrainingPlan:
        """The plan, priced against the best informed adversary; abandoned rounds are priced like the others."""
        settings = self.task.settings(public_size=self.public_size)
        plan = TrainingPlan.calibrated(
            epsilon=self.epsilon,
            delta=self.delta,
            public_size=self.public_size,
            unit=self.unit,
            shares=NoiseShares(
                count=self.parties.counted,
                dimension=self.task.dimension,
                holders_per_unit=self.holders_per_unit,
                margin=self.task.margin,
            ),
            **{**settings, "steps": settings["steps"] + self.spare},
        )
        return replace(plan, noise_multiplier=_rounded_up(plan.noise_multiplier))

    def event(self, shares: int | None = None) -> DpEvent:
        if shares is None:
            return self.plan.event()
        noise, known = self.noise.under(shares).noise_multiplier, self.plan.shares
        assert known is not None
        return replace(self.plan, noise_multiplier=noise, shares=replace(known, count=shares)).event()

    @cached_property
    def noise(self) -> GaussianShares:
        return self.plan.mechanism_of_shares()

    @property
    def optimization(self) -> Optimization:
        """The steps of the optimizer, as they are chosen for one holder under as much noise."""
        alike = self.epsilon / (self.parties.spread * self.holders_per_unit)
        return self.task.optimization(epsilon=alike, public_size=self.public_size)

    @cached_property
    def modulus(self) -> Modulus:
        return Modulus.fitting(**self._sums)

    @property
    def chance_of_wrap(self) -> float:
        """A bound of the chance that one round's sum is wrong; it is no less private."""
        return self.modulus.chance_of_wrap(**self._sums)

    @property
    def _sums(self) -> dict[str, Any]:
        """The size of sums in grid steps: as if twice the expected batch moved one parameter with full norm."""
        return {
            "largest": 2 * self.plan.expected_batch * self.noise.clip_norm / self.noise.grid,
            "sigma": self.noise.share_sigma * self.parties.holders**0.5,
            "dimension": self.noise.dimension,
        }

    @property
    def largest_letter(self) -> int:
        """In bytes: the numbers of a round, and room for keys and shares of the rounds to come."""
        return 2**26 + 16 * self.noise.dimension

    def terms(self, number: int) -> Terms:
        """Return the terms of one round, numbered from 1."""
        if not 1 <= _validate.integer("number", number) <= self.plan.steps:
            raise InvalidInput(f"expected a round from 1 to {self.plan.steps}, got number={number}")
        return Terms(
            study=self.digest,
            number=number,
            parties=self.parties,
            places=dict(enumerate(self.keys.values(), 1)),
            dimension=self.noise.dimension,
            bits=self.modulus.bits,
        )


# Files


def read_study(path: str | Path) -> dict[str, Any]:
    """Read a study's TOML file."""
    return read_file(path, "a study", largest=_LARGEST_FILE)


def write_signature(path: str | os.PathLike[str], signature: Signed) -> None:
    """Write a holder's agreement to a study into a new, public file.

    Args:
        path: The file, which must not exist.
        signature: The value of `Study.signed`.

    Raises:
        InvalidInput: If there is a file already.

    ```python
    write_signature("delft.json", study.signed(PrivateKey.read("delft.key")))
    ```
    """
    try:
        write_new(Path(path), json_bytes(dict(signature)), readable=True)
    except FileExistsError as error:
        raise InvalidInput(f"expected no file at {os.fspath(path)}, got one; choose another name") from error


def read_signature(path: str | os.PathLike[str]) -> Signed:
    """Read a file of `write_signature`. `Study.check_signatures` says by which holder and of which study it is.

    Args:
        path: The file.

    Returns:
        The signature, for `Study.check_signatures` or a `Node`.

    Raises:
        InvalidInput: If the file does not hold one JSON object of at most 16 KiB.

    ```python
    study.check_signatures([read_signature(path) for path in ("delft.json", "utrecht.json", "leiden.json")])
    ```
    """
    return read_file(path, "a signature", largest=_LARGEST_SIGNATURE)


def _key(name: str, value: Any) -> PublicKey:
    """Return the key in the line between BEGIN and END of a .pub file."""
    try:
        content = base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        content = b""
    if len(content) != len(_PREFIX) + 32 or not content.startswith(_PREFIX):
        raise InvalidInput(
            f"expected the key of {name} to be the line between BEGIN and END in its .pub file, got another"
        )
    return PublicKey(content[len(_PREFIX) :])


def _line(key: PublicKey) -> str:
    return base64.b64encode(_PREFIX + key.raw).decode()


def _rounded_up(value: float) -> float:
    """Round up to six digits, so that all holders' machines have the same bits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return float(f"{math.ceil(value / unit) * unit:.6g}")


# Rehearsals


def able_to_pay(
    study: Agreed, keys: Mapping[int, PrivateKey], ledgers: Mapping[int, Ledger]
) -> dict[int, PrivateKey]:
    """Return the keys, by place, of the holders whose ledgers have room for the study."""

    def pays(place: int) -> bool:
        try:
            if place in ledgers:
                study.check_room(ledgers[place])
        except BudgetExceeded:
            return False
        return True

    admitted = {place: key for place, key in keys.items() if pays(place)}
    if len(admitted) < study.parties.least:
        raise InvalidInput(
            f"expected at least {study.parties.least} holders whose ledgers have room for the study, got "
            f"{len(admitted)}; nothing was charged: ask for a smaller ε"
        )
    return admitted
