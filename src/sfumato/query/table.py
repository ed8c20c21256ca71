"""A private table that answers queries: parse, price, charge, and only then touch the data."""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Protocol, Required, TypedDict, Unpack

import numpy as np

from sfumato import accounting
from sfumato.caveats import Code
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate, Charge, Ledger
from sfumato.ledger.rule import Rule, same_releases
from sfumato.policy import Key, Policy
from sfumato.query.aggregates import measures_for, weights_for
from sfumato.query.answer import Answer, KeptAnswers, check_version, name_of, notes_for, words_of
from sfumato.query.bounding import Bounding
from sfumato.query.dry_run import ExpectedError, Trial, expected_errors, expected_groups, trials, warn_of_noise
from sfumato.query.engines import Engine, open_engine
from sfumato.query.magnitudes import ApproximateBounds, bounds_from, magnitudes, table_and_column
from sfumato.query.measures import UNITS, Counted
from sfumato.query.plan import MOST_GROUPS, Aggregate, AnyKey, Query, public_keys, scope, touched_unit
from sfumato.query.postprocessing import draws_for
from sfumato.query.pricing import Compiled, Planned, Price, Ready, Spending, price
from sfumato.query.reading import QueryRefused
from sfumato.query.release import Noisy, add_noise
from sfumato.query.rows import early_sums, rows_of
from sfumato.query.shaping import Exact, Groups, Rows, by_group, cells_by_group, in_parts, public_groups, shaped
from sfumato.query.sql import checked, parse_query, select
from sfumato.randomness import Sampler, SecretStream, caveats_of_sampler

RELATION = accounting.Relation.ADD_REMOVE
"""Under which queries are priced: contributions are bounded for a unit that comes or goes."""

_MOST_PLANS = 63  # whose SQL is kept
MOST_VALUES = 2_000_000
"""Noisy numbers of one query. Each takes about a µs, 64 bytes while its part is computed, and 350 bytes where
it is a row of an engine: together two seconds and 700 MiB."""
_AT_ONCE = 500_000  # of them


class Spent(Protocol):
    """The figures of a ledger, or of a share of it, that an answer states."""

    @property
    def epsilon_spent(self) -> float: ...
    @property
    def epsilon_left(self) -> float: ...


class Terms(TypedDict, total=False):
    """The cost of an answer and its noise: the options of `ask` that plans and dry runs take too."""

    epsilon: Required[float]
    delta: float | None
    split: Sequence[float] | None
    noise: str | None


class Table:
    """One private table under its policy and its ledger.

    *Guarantees*: each answer is ε-DP, or (ε, δ)-DP where keys are selected privately or noise is Gaussian, for
    one unit added or removed; the ledger is charged before the data is touched, and refuses a charge that does
    not fit. A query is refused from the query and the policy alone. Errors of the engine keep their text to
    themselves. The time that an engine takes is not hidden: answer remote strangers through a queue.

    Args:
        policy: The policy of the table.
        ledger: Where answers are charged; None for dry runs only.
        engine: "duckdb", "postgres" or "spark"; chosen from the policy's source by default.
        data: A DataFrame or an Arrow table to ask, in place of the policy's source.
        master: The address of the Spark cluster.
        sampler: The secret stream; a seeded one, for tests, makes answers not private.
        kept: Where answers are kept to be given again.

    Terms:
        query: SQL, or the result of `select`.
        epsilon: The ε of the answer.
        delta: Its δ, for groups that are not declared, or for Gaussian noise; the budget's by default.
        split: How ε is shared among the aggregates, in the order of the query: (3, 1) gives the first three
            times as much as the second.
        noise: "laplace" or "gaussian". By default Gaussian where it errs less and leaves no less in the ledger
            for later: never in a ledger of pure ε alone.
        terms: epsilon, delta, split and noise.
        planned: The result of `plan`.
        ready: The result of `ready`, also of another table of the same policy and engine.
        charge: The charge of the query, which the table's ledger has made for it: it pays for one answer.

    >>> import pandas as pd
    >>> from sfumato.query import Column, Policy
    >>> from sfumato.accounting import Budget
    >>> age = Column(name="age", type="integer", lower=0, upper=120)
    >>> policy = Policy(table="people", source="people.csv", columns={"age": age}, budget=Budget(epsilon=3))
    >>> people = Table(policy, None, data=pd.DataFrame({"age": [20, 30, 40] * 1000}))
    >>> expected = people.dry_run("SELECT AVG(age) FROM people", epsilon=0.5)
    """

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger | None,
        *,
        engine: str | Engine | None = None,
        data: Any = None,
        master: str = "local[*]",
        sampler: Sampler | None = None,
        kept: KeptAnswers | None = None,
    ) -> None:
        if ledger is not None:
            ledger.check_unit(policy.budget.unit)
            ledger.check_dataset(policy.dataset)
        self.policy = policy
        self.ledger = ledger
        self._engine = engine if isinstance(engine, Engine) else None
        self._engine_name = engine if isinstance(engine, str) else None
        self._data, self._master = data, master
        self._kept = kept
        self._plans: dict[Query, Compiled] = {}
        self._parsed = functools.lru_cache(maxsize=_MOST_PLANS)(self._parse)
        self._sampler = sampler if sampler is not None else SecretStream()
        self._rehearsing = threading.Lock()

    def ask(
        self,
        query: str | Query,
        *,
        epsilon: float,
        delta: float | None = None,
        again: bool = False,
        split: Sequence[float] | None = None,
        noise: str | None = None,
    ) -> Answer:
        """Answer a query for ε, and for δ where its groups are private keys.

        With `again`, an answer to the same words under the same policy, version, ε and δ that was paid for
        before is given once more: nothing is charged or read. Answers are kept where the policy has a version.
        Where the noise will be as large as all that is declared allows, a `TooMuchNoise` warning says so before
        the charge.

        Args:
            again: True to have an answer that was paid for before.

        Returns:
            The noisy rows with their intervals.

        Raises:
            QueryRefused: If it cannot be answered privately. Nothing is charged.
            BudgetExceeded: If the ledger has no room. Nothing is read.
        """
        ledger, kept = self._charged(), self._kept
        planned = self.plan(query, epsilon=epsilon, delta=delta, split=split, noise=noise)
        name, declared = None, self.policy.version is not None and self._sampler.private
        if kept is not None and isinstance(query, str) and declared:
            shares = None if split is None else tuple(map(float, split))
            name = name_of(query, self.policy, epsilon=epsilon, delta=delta, split=shares, noise=noise)
        if again:
            check_version(self.policy)
            if name is None or kept is None:
                raise InvalidInput(
                    "expected a question in SQL and a place for answers to give one again; open the table with "
                    "kept=KeptAnswers(folder)"
                )
            known = kept.find(name)
            if known is not None:
                return replace(known, epsilon_spent=ledger.epsilon_spent, epsilon_left=ledger.epsilon_left)
        warn_of_noise(planned.query, planned.price, scope(planned.query, self.policy), stacklevel=2)
        ready = self.ready(planned)
        answer = self.answer(ready, self._charge(planned.price, planned.purpose), ledger=ledger)
        if name is not None and kept is not None:
            kept.keep(name, answer)
        return answer

    def plan(self, query: str | Query, **terms: Unpack[Terms]) -> Planned:
        """Return the first part of `ask`: the query with its noise, and the event that is to be charged.

        Threads may plan at once.

        Raises:
            QueryRefused: If it cannot be answered privately.
        """
        plan, purpose = self._read(query)
        cost = self._price(plan, **terms)
        return Planned(query=plan, price=cost, purpose=purpose, values=self._values(plan, cost))

    def _values(self, plan: Query, cost: Price) -> int:
        """How many noisy numbers a query takes, from its plan alone; refused beyond the most."""
        policy = scope(plan, self.policy)
        keys = public_keys(plan, policy)
        groups = expected_groups(keys, policy)
        numbers = cost.numbers * (1 if plan.post is None else 1 + draws_for(groups, cost.numbers))
        if groups * numbers > MOST_VALUES and (keys is not None or numbers > MOST_VALUES):
            raise QueryRefused(
                f"the query takes {groups * numbers:,} noisy numbers, {numbers:,} for each of {groups:,} "
                f"groups, and at most {MOST_VALUES:,} are drawn; group by fewer columns or bins, or ask for "
                "one aggregate at a time"
            )
        return groups * numbers

    def ready(self, planned: Planned) -> Ready:
        """Return the second part of `ask`: the query as the engine has planned it, without reading a row.

        Raises:
            QueryRefused: If the engine cannot plan it.
        """
        compiled = self._compiled(planned.query, secrets.token_hex(16))
        return Ready(planned=planned, compiled=compiled, engine=self._engine)

    def answer(self, ready: Ready, charge: Charge, *, ledger: Spent) -> Answer:
        """Return the last part of `ask`: the noisy rows of a query that was charged.

        Args:
            ledger: The ledger, or a share of it, whose ε the answer states.

        Raises:
            InvalidInput: If it is no charge, such as a refusal, that of another event or of another ledger, or
                one that was answered before. Nothing is read.
        """
        return self.released(ready, charge, self.read(ready, charge), ledger=ledger)

    def read(self, ready: Ready, charge: Charge) -> Exact:
        """Return the sums before noise, in the thread that has the engine: PRIVATE, for `released` alone.

        Of groups with private keys they are only those that are shown.
        """
        planned = ready.planned
        if not isinstance(charge, Charge) or not same_releases(charge.event, planned.price.event()):
            raise InvalidInput("expected the charge of this query, got a refusal or that of another release")
        self._charged().use(charge)
        engine = (
            self._engine if self._engine is not None and self._engine is ready.engine else self._connected()
        )
        if planned.price.selection is None:
            return self._fetched(ready.compiled, engine)
        batches = engine.batches
        cells = [(tree, batches(counts)) for tree, counts in ready.compiled.cells]
        return self._selected(planned.query, planned.price, batches(ready.compiled.sums), cells)

    def released(self, ready: Ready, charge: Charge, exact: Exact, *, ledger: Spent) -> Answer:
        """Return the noisy rows of sums that were read; any thread may.

        Args:
            exact: The result of `read`.
            ledger: The ledger, or a share of it, whose ε the answer states.
        """
        plan, cost = ready.planned.query, ready.planned.price
        groups, parts = self._release(plan, cost, exact)
        return replace(self._answer(plan, cost, groups, parts, ledger), entry=charge.head)

    def prepare(self) -> None:
        """Open the source and plan a first query, so that later ones are quicker. Nothing is spent."""
        count = f'SELECT COUNT(*) FROM "{self.policy.private_names[0]}"'
        self._compiled(self._read(count)[0], secrets.token_hex(16))

    def certificate(self, answer: Answer) -> Certificate:
        """Return the claim of one answer, from its charge in the ledger: anyone can compute its ε again.

        Args:
            answer: The result of `ask`.
        """
        ledger = self._charged()
        charge = next((one for one in ledger.charges() if one.head == answer.entry), None)
        if charge is None:
            raise InvalidInput(
                f"expected an answer that the ledger was charged for, got {answer.entry}; use the ledger "
                "that it was asked under"
            )
        unit = self.policy.unit
        plan = {
            "table": ", ".join(self.policy.private_names),
            "version": self.policy.version,
            "unit": {"column": unit.column, "rows": unit.rows, "groups": unit.groups},
            "columns": list(answer.columns),
            "epsilon": answer.epsilon,
            "delta": answer.delta,
        }
        return ledger.certificate(charge, plan=plan, caveats=answer.notes)

    def select(
        self,
        *aggregates: Aggregate,
        epsilon: float,
        by: Sequence[str | AnyKey] = (),
        where: str | None = None,
        delta: float | None = None,
    ) -> Answer:
        """Ask without SQL: `table.select(mean("age"), by=["city"], epsilon=0.1)`.

        Args:
            aggregates: The aggregates of each group.
            by: Columns to group by, or `GroupKey`s with bins.
            where: A condition in SQL.

        Returns:
            The noisy rows with their intervals.
        """
        return self.ask(select(self.policy, *aggregates, by=by, where=where), epsilon=epsilon, delta=delta)

    def dry_run(self, query: str | Query, **terms: Unpack[Terms]) -> tuple[ExpectedError, ...]:
        """Return the expected error of each column of the answer, without spending or reading anything.

        Raises:
            QueryRefused: If it cannot be answered privately.
            BudgetExceeded: If the table's ledger would refuse it now.
        """
        planned = self.plan(query, **terms)
        if self.ledger is not None:
            self.ledger.check(planned.price.event(), relation=RELATION, unit=self.policy.budget.unit)
        warn_of_noise(planned.query, planned.price, scope(planned.query, self.policy), stacklevel=2)
        return self.expected(planned)

    def expected(self, planned: Planned) -> tuple[ExpectedError, ...]:
        """Return the expected errors of a planned query, once it was compiled as it would be asked.

        It is compiled for tables without rows, so that no source is opened. Threads may do it at once.
        """
        with self._rehearsing:
            self._compile(planned.query, self._blank, salt="")
        return expected_errors(planned.query, planned.price, scope(planned.query, self.policy))

    @functools.cached_property
    def _blank(self) -> Engine:
        """The policy's tables on DuckDB, with the declared columns and no rows."""
        given = {name: _no_rows(self.policy.private(name)) for name in self.policy.private_names}
        given |= {name: _no_rows(table) for name, table in self.policy.public.items()}
        return open_engine(self.policy, name="duckdb", data=given)

    def tries(self, query: str | Query, **terms: Unpack[Terms]) -> tuple[Trial, ...]:
        """Return the expected errors if fewer rows and groups of a person counted; spend nothing."""
        if self.policy.unit.column is None:
            raise InvalidInput("expected a policy with unit.column to try fewer rows, got one row a person")

        def expect(policy: Policy, kept: float) -> tuple[ExpectedError, ...]:
            tried = Table(policy, None).plan(query, **terms)
            return expected_errors(tried.query, tried.price, scope(tried.query, policy), kept=kept)

        return trials(self.policy, grouped=bool(self._read(query)[0].keys), expect=expect)

    def approx_bounds(self, column: str, *, epsilon: float, table: str | None = None) -> ApproximateBounds:
        """Return bounds for a column of numbers, for ε, where none are publicly known; few rows lie outside.

        They are released, not declared: no query uses them until the holder writes them into the policy.

        Args:
            column: A column of numbers; of several tables as TABLE.COLUMN.
            table: The table, of several; by default the only one that has the column.

        Raises:
            BudgetExceeded: If the ledger has no room.
        """
        policy, column = table_and_column(column, self.policy, table)
        ledger, measure = self._charged(), magnitudes(column, policy)
        cost = price((measure,), policy.unit, Spending(epsilon=epsilon))
        asked = Bounding(Query(outputs=()), (measure,), policy, None, secrets.token_hex(16))
        engine = self._connected()
        prepared = engine.prepare(asked.cell_counts(engine.declared(policy), measure))
        self._charge(cost, f"query: bounds of {measure.of.name}")
        exact = cells_by_group(engine.fetch(prepared), [()], [], measure.cells)
        noisy = cost.noises[0].release(exact, self._sampler)
        lower, upper, found = bounds_from(measure, noisy[0], cost.noises[0])
        return ApproximateBounds(
            column=measure.of.name,
            table=policy.table if policy.tables else None,
            type=policy.columns[measure.of.name].type,
            lower=lower,
            upper=upper,
            found=found,
            epsilon=epsilon,
            delta=0.0,
            epsilon_spent=ledger.epsilon_spent,
            epsilon_left=ledger.epsilon_left,
        )

    def _price(
        self,
        query: Query,
        *,
        epsilon: float,
        delta: float | None = None,
        split: Sequence[float] | None = None,
        noise: str | None = None,
    ) -> Price:
        """Choose the noise of a query, and through it the event that is charged."""
        policy = scope(query, self.policy)
        private_keys = public_keys(query, policy) is None
        if private_keys and delta is None:
            delta = self.policy.budget.delta / 1000  # the ledger's share then has room for a hundred
        if private_keys and not delta:
            raise QueryRefused(
                f"the values of {', '.join(key.column for key in query.keys)} are not declared, and showing "
                "which occur takes a δ > 0; the holder can declare categories, or a delta in [budget]",
                nearest=f"SELECT COUNT(*) FROM {self.policy.table}",
            )
        measures, unit = measures_for(query, policy), touched_unit(query, policy)
        selection_delta = delta if private_keys else None
        spending = Spending(
            epsilon=epsilon,
            noise_delta=max(0.0, self.policy.budget.delta - (selection_delta or 0.0)),
            selection_delta=selection_delta,
            weights=weights_for(query, measures, split),
            noise=noise,
        )
        return price(measures, unit, spending, cost=self._counted_after)

    def _counted_after(self, event: accounting.DpEvent) -> float:
        """ε that the ledger counts after an event; without one, that a new ledger would."""
        if self.ledger is not None:
            return self.ledger.counted_after(event, relation=RELATION, unit=self.policy.budget.unit)
        rule = Rule(self.policy.budget)
        return rule.counted_after(rule.nothing, event)

    def exact_sums(self, query: str | Query, *, salt: str) -> Exact:
        """Return the bounded sums before noise: PRIVATE, for the holder's own tests of sensitivity.

        Args:
            salt: A secret text for the choice among a person's rows.
        """
        return self._fetched(self._compiled(self._read(query)[0], salt))

    def _charge(self, cost: Price, purpose: str) -> Charge:
        return self._charged().charge(
            cost.event(),
            purpose=purpose,
            relation=RELATION,
            unit=self.policy.budget.unit,
            private=self._sampler.private,
        )

    def _charged(self) -> Ledger:
        if self.ledger is None:
            raise InvalidInput(
                "expected a ledger to charge, got None; open one with Ledger.open(path, budget=…)"
            )
        return self.ledger

    def _read(self, query: str | Query) -> tuple[Query, str]:
        """A query, and its words on one line for the ledger."""
        if isinstance(query, str):
            return self._parsed(query)
        return checked(query, self.policy), _on_a_line(repr(query))

    def _parse(self, sql: str) -> tuple[Query, str]:
        return parse_query(sql, self.policy), _on_a_line(words_of(sql))

    def _connected(self) -> Engine:
        if self._engine is None or not self._engine.ready():
            self._plans = {}
            self._engine = open_engine(
                self.policy, name=self._engine_name, data=self._data, master=self._master
            )
        return self._engine

    def _compiled(self, plan: Query, salt: str) -> Compiled:
        """The SQL of a plan; DuckDB's is kept where no salt is in it, as files do not change their columns."""
        engine = self._connected()
        if engine.name != "duckdb" or self.policy.unit.column is not None or plan.joined is not None:
            return self._compile(plan, engine, salt)
        if plan not in self._plans:
            self._plans = dict(list(self._plans.items())[-_MOST_PLANS:])
            self._plans[plan] = self._compile(plan, engine, salt)
        return self._plans[plan]

    def _compile(self, plan: Query, engine: Engine, salt: str) -> Compiled:
        policy = scope(plan, self.policy)
        asked = Bounding(plan, measures_for(plan, policy), policy, public_keys(plan, policy), salt)
        table = functools.cache(lambda: rows_of(engine, asked, self.policy))
        sums = early_sums(engine, asked, self.policy)
        text = engine.prepare(asked.sums(table()) if sums is None else sums)
        trees = [measure for measure in asked.measures if isinstance(measure, Counted)]
        return Compiled(text, [(tree, engine.prepare(asked.cell_counts(table(), tree))) for tree in trees])

    def _fetched(self, compiled: Compiled, engine: Engine | None = None) -> Exact:
        fetch = (engine or self._connected()).fetch
        return Exact(fetch(compiled.sums), [(tree, fetch(counts)) for tree, counts in compiled.cells])

    def _release(
        self, plan: Query, cost: Price, exact: Exact, *, at_once: int | None = _AT_ONCE
    ) -> tuple[Groups, Iterator[tuple[Noisy, ...]]]:
        """The groups, and the noisy numbers of so many at a time that they need little memory."""
        keys, names = public_keys(plan, scope(plan, self.policy)), plan.key_names
        if keys is None and exact.groups is None:
            exact = self._selected(plan, cost, [exact.sums], [(tree, [rows]) for tree, rows in exact.cells])
        groups = public_groups(keys) if keys is not None else exact.groups or []
        size = len(groups) if at_once is None else max(1, at_once // cost.numbers)
        return groups, self._noisy(cost, exact, groups, names, size)

    def _noisy(
        self, cost: Price, exact: Exact, groups: Groups, names: list[str], size: int
    ) -> Iterator[tuple[Noisy, ...]]:
        for some, found in in_parts(exact, groups, names, size):
            sums = by_group(found.sums, some, names)
            cells = [cells_by_group(rows, some, names, tree.cells) for tree, rows in found.cells]
            yield add_noise(cost, sums, cells, self._sampler)

    def _selected(
        self, plan: Query, cost: Price, sums: Iterable[Rows], cells: Sequence[tuple[Counted, Iterable[Rows]]]
    ) -> Exact:
        """The rows of the keys that enough units have; sorted, since the engine's order is not public.

        Of more than are shown, those with the largest noisy numbers of units, which are released with the keys.
        No more rows are held than are shown, and one batch.
        """
        assert cost.selection is not None
        names, most = plan.key_names, most_selected(plan, cost)
        kept: list[tuple[int, tuple[Key, ...], dict[str, Any]]] = []
        for rows in sums:
            units = np.array([int(row[UNITS]) for row in rows], dtype=np.int64)
            chosen = zip(cost.selection.select(units, self._sampler), rows, strict=True)
            kept += [(-int(noisy), tuple(row[name] for name in names), row) for noisy, row in chosen if noisy]
            kept = sorted(kept, key=itemgetter(0, 1))[:most]
        found = {key: row for _, key, row in kept}
        shown = [
            (tree, [row for rows in batches for row in rows if tuple(row[name] for name in names) in found])
            for tree, batches in cells
        ]
        return Exact(list(found.values()), shown, sorted(found))

    def _answer(
        self, plan: Query, cost: Price, groups: Groups, parts: Iterable[Sequence[Noisy]], ledger: Spent
    ) -> Answer:
        policy = scope(plan, self.policy)
        shape, most = shaped(plan, policy, groups, parts), most_selected(plan, cost)
        notes = notes_for(plan, self.policy, family=cost.noises[0].family)
        if len(groups) == most and public_keys(plan, policy) is None:
            notes += (Code.MOST_GROUPS(most=f"{most:,}"),)
        return Answer(
            **vars(shape),
            epsilon=cost.epsilon,
            delta=cost.delta,
            epsilon_spent=ledger.epsilon_spent,
            epsilon_left=ledger.epsilon_left,
            notes=(*notes, *caveats_of_sampler(self._sampler)),
        )


def most_selected(plan: Query, cost: Price) -> int:
    """How many groups are shown of keys that are not declared, from the plan alone."""
    simulated = 0 if plan.post is None else draws_for(MOST_GROUPS, cost.numbers)
    return min(MOST_GROUPS, MOST_VALUES // (cost.numbers * (1 + simulated)))


_STORED = {"integer": "int64", "real": "float64", "text": "string", "boolean": "bool", "date": "date32"}


def _no_rows(table: Any) -> Any:
    """An Arrow table of the columns that a private or public table declares."""
    import pyarrow as pa

    columns = {column.name: _STORED[column.type] for column in table.columns.values()}
    unit = getattr(table, "unit", None)
    if unit is not None and unit.column is not None:
        columns.setdefault(unit.column, "string")
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()]).empty_table()


def _on_a_line(words: str) -> str:
    return "query: " + "".join(letter if letter.isprintable() else " " for letter in words)[:490]
