"""What all parties of a study agree on and sign: a TOML file that says everything that affects privacy.

[study]
name = "digits of ten hospitals"
data = "mnist"            # which recipe: the name of a data set
classes = 10
public_size = 60000       # about how many units all holders have together, if that may be known
largest_share = 0.1       # of these, that one holder has at most
unit = "record"
epsilon = 1.0             # against the best informed adversary that is declared here
delta = 1e-5
dropped = 2               # holders that may be lost in a round
colluding = 3             # holders that may collude with the coordinator
spare = 10                # rounds that may be abandoned; they are priced like all others
holders_per_unit = 1      # optional: with how many holders one unit may be at most; 1 if left out

[network]                 # optional: a network from random weights in place of the head; see `NetworkTerms`
model = "cnn"
shape = [1, 28, 28]
steps = 300
expected_batch = 1024
clip_norm = 1.0
learning_rate = 0.5

[holders]                 # in this order; each with the middle line of its .pub file, from: sfumato key create
delft = "MCowBQYDK2VwAyEA…"
utrecht = "MCowBQYDK2VwAyEA…"

With data = "table" a network learns a column of the holders' tables. What may be known of them stands here as
in the policy of a table, and each holder's own policy must say the same.

[table]
target = "ill"
rows = 1                  # of one unit that count, at most; a unit that is a column tells people apart

[table.columns.age]
type = "integer"
lower = 0
upper = 120
"""

from __future__ import annotations

import base64
import hashlib
import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.holders.agreed import Agreed
from sfumato.holders.masks import Modulus
from sfumato.holders.messages import Terms
from sfumato.holders.network import NetworkTerms
from sfumato.holders.parties import Parties
from sfumato.holders.tasks import TABLE, Images, Network, Table
from sfumato.ledger import Ledger
from sfumato.ledger.chain import canonical
from sfumato.ledger.signing import PublicKey
from sfumato.mechanisms import GaussianShares
from sfumato.recipes import Recipe
from sfumato.training import LossFunction, NoiseShares, Optimization, TrainingPlan

_PARTIES = ("dropped", "colluding")
_LARGEST_FILE = 2**20
_MOST_CLASSES = 2**16
_PREFIX = bytes.fromhex("302a300506032b6570032100")  # of every Ed25519 key in such a file (RFC 8410)


@dataclass(frozen=True, kw_only=True)
class Study(Agreed):
    """A head on public features, or a network on images or a table, trained by DP-SGD over several holders.

    It is agreed on as a TOML file, which `read` takes; the fields are those of the file.

    Args:
        name: What reports and ledgers call the study.
        data: The name of a data set, which says the recipe: features and settings of the training; or "table".
        classes: How many classes there are, at least 2.
        public_size: About how many units all holders have together, if that may be known.
        largest_share: The share of these that one holder has at most, in (0, 1].
        unit: Who is protected, such as "record" or "person".
        epsilon: The ε of all rounds against the best informed adversary that `parties` declare.
        delta: Its δ, above 0.
        parties: How many holders there are, and how many may be lost or collude.
        spare: How many rounds may be abandoned; so many steps more are planned and priced.
        keys: The holders' public signing keys by name; a holder's place is its number in them, from 1.
        holders_per_unit: With how many holders one unit may be at most. Each of them clips and samples it.
        network: What is trained in place of the head on public features, and how.
        table: What is learned from which columns, where `data` is "table".

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
        for name in ("name", "data", "unit"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInput(f"expected {name} of a study to be a text, got another type")
        if _validate.integer("classes", self.classes, least=2) > _MOST_CLASSES:
            raise InvalidInput(f"expected at most {_MOST_CLASSES} classes, got classes={self.classes}")
        _validate.integer("public_size", self.public_size, least=1)
        _validate.integer("spare", self.spare)
        _validate.integer("holders_per_unit", self.holders_per_unit, least=1)
        _validate.positive("epsilon", self.epsilon)
        _validate.probability("largest_share", self.largest_share)
        _validate.probability("delta", self.delta)
        object.__setattr__(self, "keys", MappingProxyType(dict(self.keys)))
        if len(self.keys) != self.parties.holders or len(set(self.keys.values())) != len(self.keys):
            raise InvalidInput("expected one key of each holder, all of them different, got others")
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
        with Path(path).open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise InvalidInput(f"expected a study of at most {_LARGEST_FILE} bytes in {path}, got more")
        try:
            data = tomllib.loads(text.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"expected {path} to be a TOML file, got another: {error}") from error
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Study:
        """Of the sections `study` and `holders`, and maybe `network` or `table`; nothing else may be there."""
        _check_names("a study file", data, ("study", "holders"), optional=("network", TABLE))
        said, keys = data["study"], data["holders"]
        expected = {field.name for field in fields(cls)} - {"parties", "keys", "network", "table"} | set(
            _PARTIES
        )
        _check_names("section study", said, expected - {"holders_per_unit"}, optional=("holders_per_unit",))
        parties = Parties(holders=len(keys), **{name: said[name] for name in _PARTIES})
        terms = {name: value for name, value in said.items() if name not in _PARTIES}
        return cls(
            parties=parties,
            keys={name: _key(name, value) for name, value in keys.items()},
            network=NetworkTerms.from_dict(data["network"]) if "network" in data else None,
            table=Table.from_dict(data[TABLE], unit=terms["unit"]) if TABLE in data else None,
            **terms,
        )

    def to_dict(self) -> dict[str, Any]:
        terms = {field.name: getattr(self, field.name) for field in fields(self)}
        parties: Parties = terms.pop("parties")
        keys = {name: _line(key) for name, key in terms.pop("keys").items()}
        network: NetworkTerms | None = terms.pop("network")
        table: Table | None = terms.pop("table")
        return {
            "study": {**terms, **{name: getattr(parties, name) for name in _PARTIES}},
            "holders": keys,
            **({} if network is None else {"network": network.to_dict()}),
            **({} if table is None else {TABLE: table.to_dict()}),
        }

    # Agreeing

    @cached_property
    def digest(self) -> str:
        """Another for every study that differs in anything, the order of the holders included.

        What follows from the file is in it too. Holders whose versions of this code would clip, sample or add
        noise differently have different digests, and no round together.
        """
        follows = {
            "plan": self.plan.to_json(),
            "optimization": asdict(self.optimization),
            "task": self.task.facts(),
            "bits": self.modulus.bits,
        }
        ordered = {**self.to_dict(), "order": list(self.keys), "follows": follows}
        return hashlib.sha256(canonical(ordered)).hexdigest()

    # What will be done

    @cached_property
    def task(self) -> Images | Network | Table:
        if self.network is not None:
            return Network(terms=self.network, classes=self.classes)
        return self.table or Images(data=self.data, classes=self.classes)

    @property
    def recipe(self) -> Recipe:
        """Of a study of a head on public features."""
        if not isinstance(self.task, Images):
            raise InvalidInput("expected a study of a head on public features, got one of another network")
        return self.task.recipe

    @cached_property
    def plan(self) -> TrainingPlan:
        """Priced against the best informed adversary; rounds that are abandoned are priced like the others."""
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

    def learner(self) -> nn.Module:
        """What every holder trains, as it is before the first step: the same at all of them."""
        return self.task.learner()

    @property
    def loss(self) -> LossFunction:
        return self.task.loss

    @cached_property
    def noise(self) -> GaussianShares:
        return self.plan.mechanism_of_shares()

    @property
    def optimization(self) -> Optimization:
        """As it is chosen for one holder under as much noise."""
        alike = self.epsilon / (self.parties.spread * self.holders_per_unit)
        return self.task.optimization(epsilon=alike, public_size=self.public_size)

    def epsilons(self) -> dict[str, float]:
        """ε against each adversary, after all declared drop-outs."""
        return {name: self._against(count) for name, count in self.parties.shares_against.items()}

    def _against(self, count: int) -> float:
        seen, shares = self.noise.under(count), self.plan.shares
        assert shares is not None
        plan = replace(self.plan, noise_multiplier=seen.noise_multiplier, shares=replace(shares, count=count))
        return plan.epsilon(self.delta)

    @cached_property
    def modulus(self) -> Modulus:
        return Modulus.fitting(largest=self._largest, sigma=self._widest, dimension=self.noise.dimension)

    @property
    def chance_of_wrap(self) -> float:
        """Of a sum that is wrong in one round, at most; it is no less private."""
        return self.modulus.chance_of_wrap(
            largest=self._largest, sigma=self._widest, dimension=self.noise.dimension
        )

    @property
    def _largest(self) -> float:
        """In grid steps: as if twice the expected batch pulled one parameter with all its norm."""
        return 2 * self.plan.expected_batch * self.noise.clip_norm / self.noise.grid

    @property
    def _widest(self) -> float:
        return self.noise.share_sigma * self.parties.holders**0.5

    @property
    def largest_letter(self) -> int:
        """In bytes: the numbers of a round, and room for keys and shares of the rounds to come."""
        return 2**26 + 16 * self.noise.dimension

    def terms(self, number: int) -> Terms:
        """Of one round, numbered from 1."""
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

    def check_room(self, ledger: Ledger) -> None:
        """Raise what charging the study would raise; nothing is charged."""
        ledger.check(self.plan.event(), relation=self.plan.relation, unit=self.plan.unit)


def _rounded_up(value: float) -> float:
    """To six digits, so that all holders' machines come to the same bits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return float(f"{math.ceil(value / unit) * unit:.6g}")


def _check_names(where: str, data: Any, expected: Collection[str], optional: Collection[str] = ()) -> None:
    if not isinstance(data, Mapping) or set(data) - set(optional) != set(expected):
        raise InvalidInput(
            f"expected in {where} exactly {', '.join(sorted(expected))}, got "
            f"{_validate.shown(sorted(map(str, data)) if isinstance(data, Mapping) else data)}"
        )


def _key(name: str, value: Any) -> PublicKey:
    """From the line between BEGIN and END in a .pub file."""
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
