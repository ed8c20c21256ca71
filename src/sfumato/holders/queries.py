"""SQL over the tables of several holders: counts, sums, averages and quantiles of all their rows.

The study is a TOML file beside the policies of the holders' tables, for a rehearsal in one process. Its section
`study` has kind = "query", a name, and the number of `dropped`, `colluding` and `holders_per_unit`; its section
`holders` names the policy of each holder's table, from this file. docs/how-to/holders-compute.md shows one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from sfumato import _validate
from sfumato.caveats import Code
from sfumato.errors import InvalidInput, Refused
from sfumato.holders.parties import Parties
from sfumato.holders.rounds import Losses
from sfumato.holders.study import read_study
from sfumato.holders.sums import (
    DeskSums,
    Part,
    SumRound,
    SumStudy,
    Values,
    calibrated_rounds,
    new_keys,
)
from sfumato.policy import Policy
from sfumato.query import Answer, Table, load_policy, parse_query
from sfumato.query.answer import notes_for, open_ledger
from sfumato.query.apart import Apart, Numbers
from sfumato.query.noise import Family
from sfumato.schema import Count, Model, Whole, Words, read

_PEOPLE = 2.0**40  # more than any sum is expected of; beyond it a sum may wrap, and is no less private


class _Section(Model):
    kind: Literal["query"]
    name: Words
    dropped: Count
    colluding: Count
    holders_per_unit: Whole


class _File(Model):
    study: _Section
    holders: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class HoldersAnswer:
    """An answer over several holders' tables.

    Attributes:
        answer: The noisy rows; spent and left are those of the holder whose ledger has the least left.
        against: ε against each adversary.
        holders: Number of holders whose rows are in it.
        study: The study.
    """

    answer: Answer
    against: Mapping[str, float]
    holders: int
    study: SumStudy

    def to_json(self) -> dict[str, Any]:
        return {**self.answer.to_json(), "against": dict(self.against), "holders": self.holders}


@dataclass(frozen=True, kw_only=True)
class TableStudy:
    """Tables of the same form at several holders, and the parties of a query over them.

    *Guarantees*: every holder bounds what one person adds at its own table, as its policy says, and charges its
    own ledger before a row is read; what opens is the sum over all holders with the noise that the declared
    number of shares makes. A person with at most m holders moves the sum by m times what one holder lets
    through, and that is the price.

    Args:
        name: The study's name in ledgers.
        policies: The holders' policies by name; all but source, size, budget and ledger must be equal.
        places: The file of each policy, beside which its ledger is.
        parties: The number of holders, and of those that may be lost or collude.
        holders_per_unit: Most holders that have rows of one person.

    Raises:
        InvalidInput: If the policies do not declare the same table.

    ```python
    study = TableStudy.read("study.toml")
    print(study.ask("SELECT AVG(age) FROM people", epsilon=0.5).answer.rows)
    ```
    """

    name: str
    policies: Mapping[str, Policy]
    places: Mapping[str, Path]
    parties: Parties
    holders_per_unit: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", MappingProxyType(dict(self.policies)))
        _validate.integer("holders_per_unit", self.holders_per_unit, least=1)
        first, *others = self.policies.values()
        for name, policy in zip(list(self.policies)[1:], others, strict=True):
            if _declared(policy) != _declared(first):
                raise InvalidInput(
                    f"expected all holders to declare the same table, columns and unit, got others from {name}"
                    "; agree on one policy, and change only source and budget"
                )

    @classmethod
    def read(cls, path: str | Path) -> TableStudy:
        """Read a study from a TOML file; it has no other sections and no defaults."""
        found: _File = read(_File, read_study(path), name="a study file")
        said, places = found.study, {name: Path(path).parent / file for name, file in found.holders.items()}
        return cls(
            name=said.name,
            policies={name: load_policy(file) for name, file in places.items()},
            places=places,
            parties=Parties(holders=len(places), dropped=said.dropped, colluding=said.colluding),
            holders_per_unit=said.holders_per_unit,
        )

    def ask(
        self,
        sql: str,
        *,
        epsilon: float,
        split: Sequence[float] | None = None,
        losses: Losses = lambda number: {},
    ) -> HoldersAnswer:
        """Answer a query over all holders' rows; each ledger is charged before its holder reads a row.

        Args:
            sql: The query, as for one table. GROUP BY needs declared values; COUNT(DISTINCT …) is refused.
            epsilon: The ε of the answer against the best informed adversary.
            split: How ε is shared among the aggregates.
            losses: The holders lost in the round, and at which message; none by default.

        Returns:
            The noisy rows with their intervals, and ε against each adversary.

        Raises:
            QueryRefused: If it cannot be answered privately. Nothing is charged.
            InvalidInput: If fewer holders than needed can pay. Nothing is charged.
            Refused: If too many holders were lost; the charges stay.
        """
        tables = {
            place: Table(policy, None, data=None) for place, policy in enumerate(self.policies.values(), 1)
        }
        apart = {
            place: Apart(table, parse_query(sql, table.policy), epsilon, split)
            for place, table in tables.items()
        }
        first = apart[1]
        keys = new_keys(self.parties.holders)
        delta = min(policy.budget.delta for policy in self.policies.values())
        study = SumStudy(
            name=f"{self.name}: {sql}"[:490],
            kind="query",
            plan={"sql": sql, "epsilon": epsilon, "holders_per_unit": self.holders_per_unit},
            unit=tables[1].policy.budget.unit,
            delta=delta,
            parties=self.parties,
            rounds=self._rounds(first.numbers(), epsilon, delta),
            keys=dict(zip(self.policies, (key.public for key in keys.values()), strict=True)),
        )
        compiled = {place: one.compiled() for place, one in apart.items()}  # the schema is public

        def values(place: int) -> Values:
            return lambda: [value.reshape(-1) for value in apart[place].exact(compiled[place])]

        several = "; a person with several of them counts at each" if self.holders_per_unit > 1 else ""
        with ExitStack() as stack:
            ledgers = {
                place: stack.enter_context(open_ledger(policy, self.places[name]))
                for place, (name, policy) in enumerate(self.policies.items(), 1)
            }
            desk = DeskSums(study, keys, losses=losses, ledgers=ledgers)
            total = desk.add_up(1, {place: values(place) for place in desk.keys})
            if total is None:
                raise Refused(
                    "expected enough holders for an answer, got fewer; what was charged stays charged"
                )
            deviations = [part.deviation(total.holders) for part in study.rounds[0].parts]
            shape = first.shape(total.parts, deviations)
            answer = Answer(
                columns=shape.columns,
                rows=shape.rows,
                intervals=shape.intervals,
                epsilon=epsilon,
                delta=delta,
                epsilon_spent=max(ledgers[place].epsilon_spent for place in desk.keys),
                epsilon_left=min(ledgers[place].epsilon_left for place in desk.keys),
                notes=(
                    *notes_for(first.query, first.table.policy, family=Family.GAUSSIAN),
                    Code.SOME_HOLDERS(present=total.holders, holders=self.parties.holders, several=several),
                ),
            )
        return HoldersAnswer(answer=answer, against=study.epsilons(), holders=total.holders, study=study)

    def _rounds(self, numbers: Sequence[Numbers], epsilon: float, delta: float) -> tuple[SumRound, ...]:
        largest = max(one.noise_multiplier for one in numbers)

        def rounds(factor: float) -> tuple[SumRound, ...]:
            parts = (
                Part(
                    sensitivity=one.sensitivity * self.holders_per_unit,
                    dimension=prod(one.shape),
                    noise_multiplier=factor * one.noise_multiplier / largest,
                    shares=self.parties.counted,
                    largest=_PEOPLE * one.sensitivity,
                )
                for one in numbers
            )
            return (SumRound(tuple(parts)),)

        return calibrated_rounds(rounds, epsilon=epsilon, delta=delta)


def _declared(policy: Policy) -> Policy:
    """Return the part of a policy that all holders must share."""
    budget = replace(policy.budget, epsilon=1.0, delta=0.0)
    return replace(
        policy,
        source="",
        budget=budget,
        ledger=None,
        dataset=None,
        public_size=None,
        version=None,
        delimiter=",",
        header=True,
        fields=None,
        missing=("",),
    )
