"""Train on a table from its policy: price, plan the reading, charge, and only then read a row."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato import _validate
from sfumato.accounting import DpEvent, compose, warn_of_little_protection
from sfumato.accounting import epsilon as epsilon_of
from sfumato.caveats import Code
from sfumato.datasets.dataset import AS_THEY_ARE, Chosen
from sfumato.display import visible
from sfumato.errors import InvalidInput
from sfumato.learn.options import HoldOut
from sfumato.learn.table import boosted, held_out, mlp
from sfumato.learn.table.design import Design
from sfumato.learn.table.encoding import Encoding
from sfumato.learn.table.evaluation import measure
from sfumato.learn.table.held_out import check_can_be_measured, parted
from sfumato.learn.table.linear import Additive, Rows, Watch, fit_additive, noisy_counts
from sfumato.learn.table.mechanism import ETA
from sfumato.learn.table.model import Scorer, TableModel, Unlearned
from sfumato.learn.table.plan import MODELS, RELATION, TablePlan
from sfumato.learn.table.reading import Source, public_rows, within_bound
from sfumato.learn.table.target import Target
from sfumato.ledger import Certificate, Charge, Ledger, Unrecorded
from sfumato.policy import Policy, left_out_on_purpose
from sfumato.randomness import Sampler, SecretStream, caveats_of_sampler
from sfumato.runs import Training, write_run
from sfumato.storage import RunFolder
from sfumato.training import LossFunction, NoisyAccuracy, PrivateTrainer, TrainingPlan, cross_entropy, train
from sfumato.training.hold_out import size_without
from sfumato.training.sources import ChosenRows

SETTINGS = (
    "settings of table models were chosen among about a hundred on training rows of the public data set Adult, "
    "split in two, uncharged; which model is the default was settled after its test figures had been seen"
)
_Fitted = tuple[TableModel, Certificate, Rows | None]  # with the rows kept out, if any are


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """A released model, what it cost, and how good it is on public rows, if there are any."""

    model: TableModel
    plan: TablePlan | TrainingPlan
    epsilon: float
    delta: float
    certificate: Certificate
    measured: dict[str, float | None]
    left_out: tuple[str, ...]
    seconds: float
    held_out: NoisyAccuracy | None = None  # on private rows kept out, where it was asked for


@dataclass(frozen=True, kw_only=True)
class TableTraining:
    """Training on a table, priced and ready to be charged; no row has been looked at.

    `TableTraining.prepare(policy, target="ill", epsilon=1).train(ledger=…, out=…)`.
    """

    policy: Policy
    encoding: Encoding
    target: Target
    plan: TablePlan | TrainingPlan
    delta: float
    hold_out: HoldOut | None = None
    notes: tuple[str, ...] = ()  # further caveats of the certificate
    chosen: Chosen = AS_THEY_ARE  # by whose draws rows or settings were chosen before

    @classmethod
    def prepare(
        cls,
        policy: Policy,
        *,
        target: str,
        epsilon: float,
        delta: float | None = None,
        model: str = "linear",
        hold_out: HoldOut | None = None,
        leave_out: Sequence[str] = (),
    ) -> TableTraining:
        """Everything follows from the policy; what it does not declare is refused, or left out on purpose.

        δ is the budget's where none is given. `leave_out` names columns not to learn from. `hold_out` keeps
        rows out of training, and measures accuracy on them at a price.

        Raises:
            InvalidInput: the target cannot be learned, no column can be learned from, a column has neither
                bounds nor categories, or the policy does not declare its public size; or rows kept out could
                not be measured on.
        """
        _validate.one_of("model", model, MODELS)
        wanted = Target.of(policy, target)
        encoding = Encoding.of(policy, wanted.name, leave_out=leave_out)
        delta = _declared_delta(policy) if delta is None else _validate.delta("delta", delta)
        warn_of_little_protection("this training", epsilon, delta, people=policy.least_people)
        size = _declared_size(policy)
        if hold_out is not None:
            check_can_be_measured(policy, wanted)
            size = size_without(hold_out.share, size)
        price = _network_plan if model == "mlp" else _table_plan
        plan = price(policy, size, len(encoding.encoders), epsilon, delta, model)
        return cls(policy=policy, encoding=encoding, target=wanted, plan=plan, delta=delta, hold_out=hold_out)

    @property
    def epsilon(self) -> float:
        return self.plan.epsilon(self.delta)

    @property
    def event(self) -> DpEvent:
        return self.plan.event()

    @property
    def can_hold_out(self) -> bool:
        """Whether rows could be kept out, to measure on."""
        try:
            check_can_be_measured(self.policy, self.target)
        except InvalidInput:
            return False
        return True

    @property
    def events(self) -> list[DpEvent]:
        """All that the run releases: the training, and the accuracy on what is kept out."""
        return [self.event, *([] if self.hold_out is None else [self.hold_out.event])]

    @property
    def epsilon_with_hold_out(self) -> float | None:
        return (
            None if self.hold_out is None else epsilon_of(compose(*self.events), self.delta, relation=RELATION)
        )

    @property
    def classes(self) -> int | None:
        return None if self.target.classes is None else len(self.target.classes)

    def train(
        self,
        *,
        ledger: Ledger | None = None,
        out: str | os.PathLike[str] | None = None,
        test: str | Path | None = None,
        data: Any = None,
        sampler: Sampler | None = None,
        watch: Watch = lambda done: None,
    ) -> TableRun:
        """Charge the ledger, read the rows, learn, and leave a run folder.

        `test` is a file of public rows to measure on. `data` is an Arrow table or DataFrame to learn from
        instead of the policy's source. `watch` hears how many of `releases` are done.
        """
        started = time.perf_counter()
        if ledger is not None:
            ledger.check_unit(self.policy.budget.unit)
            ledger.check_dataset(self.policy.dataset)
            if self.hold_out is not None:  # or the model would be paid for, and not what it is worth
                ledger.check(self.events, relation=RELATION, unit=self.policy.budget.unit)
        columns = [*self.encoding.names, self.target.name]
        shown = None if test is None else public_rows(self.policy, test, columns)
        if shown is not None:  # rows that cannot be measured on are refused before anything is spent
            measure(self.released(Unlearned(outputs=self.target.outputs)), shown)
        folder = None if out is None else RunFolder.begin(out)
        source = Source.open(self.policy, columns, data=data)
        sampler = SecretStream() if sampler is None else sampler
        fit = self._fit_network if isinstance(self.plan, TrainingPlan) else self._fit_table
        model, certificate, held = fit(source, ledger, sampler, watch)
        run = TableRun(
            model=model,
            plan=self.plan,
            epsilon=self.epsilon,
            delta=self.delta,
            certificate=certificate,
            measured={} if shown is None else measure(model, shown),
            left_out=self.encoding.left_out,
            seconds=time.perf_counter() - started,
        )
        if folder is not None:
            _write(folder, run)
        return (
            run
            if held is None
            else replace(run, held_out=self._measured(run.model, held, ledger, sampler, folder))
        )

    def _measured(
        self, model: TableModel, held: Rows, ledger: Ledger | None, sampler: Sampler, folder: RunFolder | None
    ) -> NoisyAccuracy:
        """Pay for accuracy on the rows kept out, and look at them."""
        assert self.hold_out is not None
        unit, epsilon = self.policy.budget.unit, self.hold_out.epsilon
        found = held_out.accuracy(
            model,
            held,
            unit=unit,
            epsilon=epsilon,
            delta=self.delta,
            ledger=ledger,
            sampler=sampler,
            chosen=self.chosen,
        )
        if folder is not None:
            folder.write_json("hold_out.json", found.to_json())
        return found

    @property
    def releases(self) -> int:
        """How often noise is added: what a progress bar counts."""
        return self.plan.steps + (self.plan.visits if isinstance(self.plan, TablePlan) else 0)

    @property
    def caveats(self) -> tuple[str, ...]:
        left_out = left_out_on_purpose(self.encoding.left_out)
        return (SETTINGS, *left_out, *self.notes, *self.chosen.caveats)

    @property
    def purpose(self) -> str:
        kind = self.plan.model if isinstance(self.plan, TablePlan) else "mlp"
        return visible(f"{kind} model of {self.target.name} from table {self.policy.table}")

    def _fit_table(self, source: Source, ledger: Ledger | None, sampler: Sampler, watch: Watch) -> _Fitted:
        assert isinstance(self.plan, TablePlan)
        plan, certificate = self.plan, self._paid(ledger, sampler)
        rows, _, held = self._split(source, sampler)
        design = Design.of(
            self.encoding.encoders,
            noisy_counts(rows, self.encoding.encoders, plan, sampler),
            size=plan.public_size,
        )
        scorer: Additive | boosted.Boosted = fit_additive(
            rows, design, plan, classes=self.classes, sampler=sampler, watch=watch
        )
        if plan.visits and isinstance(scorer, Additive):
            scorer = boosted.fit_pairs(
                rows,
                scorer,
                self.encoding.encoders,
                plan,
                classes=self.classes,
                sampler=sampler,
                watch=watch,
            )
        return self.released(scorer), certificate, held

    def _fit_network(self, source: Source, ledger: Ledger | None, sampler: Sampler, watch: Watch) -> _Fitted:
        assert isinstance(self.plan, TrainingPlan)
        network = mlp.build(self.encoding.encoders, classes=self.classes)
        self._rehearse(copy.deepcopy(network))
        charge = None if ledger is None else self._charged(ledger, sampler)
        rows, units, held = self._split(source, sampler)
        result = train(
            network.module,
            ChosenRows(*self.tensors(rows), self.chosen),
            self.plan,
            delta=self.delta,
            optimization=mlp.OPTIMIZATION,
            loss_fn=self.loss,
            units=units,
            caveats=self.caveats,
            purpose=self.purpose,
            sampler=sampler,
            on_step=lambda trainer: watch(trainer.steps_done),
        )
        found = result.certificate
        if ledger is not None and charge is not None:
            caveats = [caveat for caveat in found.caveats if caveat.code is not Code.UNRECORDED]
            found = ledger.certificate(charge, plan=self.plan.to_json(), eta=found.eta, caveats=caveats)
        return self.released(network), found, held

    def _rehearse(self, network: mlp.Network) -> None:
        """One step on made-up rows, for nothing: what the network or the machine cannot do is found now."""
        assert isinstance(self.plan, TrainingPlan)
        cells = np.zeros((2, len(self.encoding.encoders)), dtype=np.int64)
        rows = self.tensors(Rows(cells=cells, target=np.zeros(2)))
        trainer = PrivateTrainer(network.module, mlp.OPTIMIZATION.build(network.module), self.plan)
        units = None if self.policy.unit.column is None else np.arange(2)
        trainer.step(next(trainer.batches(rows, units=units)), self.loss)

    def tensors(self, rows: Rows) -> tuple[Any, Any]:
        targets = rows.target.astype(np.float32 if self.classes is None else np.int64)
        return mlp.dense(self.encoding.encoders, rows.cells), targets

    @property
    def loss(self) -> LossFunction:
        return mlp.square_loss if self.classes is None else cross_entropy

    def _charged(self, ledger: Ledger, sampler: Sampler) -> Charge:
        """Spend on all steps of the network, before a row is read."""
        assert isinstance(self.plan, TrainingPlan)
        return ledger.charge(
            self.event,
            purpose=self.purpose,
            relation=self.plan.relation,
            unit=self.plan.unit,
            private=self.chosen.private_with(sampler),
        )

    def _paid(self, ledger: Ledger | None, sampler: Sampler) -> Certificate:
        """Spend, before a row is read."""
        return (ledger or Unrecorded(delta=self.delta)).pay_for(
            self.event,
            purpose=self.purpose,
            relation=RELATION,
            unit=self.policy.budget.unit,
            private=self.chosen.private_with(sampler),
            plan=self.plan.to_json(),
            eta=ETA,
            caveats=tuple(dict.fromkeys((*self.caveats, *caveats_of_sampler(sampler)))),
        )

    def _split(self, source: Source, sampler: Sampler) -> tuple[Rows, Any, Rows | None]:
        """PRIVATE: the rows to learn from, whose they are, and those kept out, if any are."""
        rows, units = self.rows(source, sampler)
        if self.hold_out is None:
            return rows, units, None
        kept, held, coins = parted(rows, self.hold_out.share, sampler)
        return kept, None if units is None else units[~coins], held

    def rows(self, source: Source, sampler: Sampler) -> tuple[Rows, Any]:
        """PRIVATE: the rows that count, and whose they are; one without a target counts nowhere."""
        table, units = source.read()
        target = self.target.encode(table)
        kept = ~np.isnan(target)
        if units is not None:
            kept[kept] = within_bound(units.filter(kept), self.policy.unit.rows, sampler)
            units = units.filter(kept).combine_chunks().dictionary_encode().indices.to_numpy()
        return Rows(cells=np.asfortranarray(self.encoding.encode(table)[kept]), target=target[kept]), units

    def released(self, scorer: Scorer) -> TableModel:
        return TableModel(encoding=self.encoding, target=self.target, scorer=scorer)


def _table_plan(policy: Policy, size: int, columns: int, epsilon: float, delta: float, model: str) -> TablePlan:
    return TablePlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=size,
        columns=columns,
        model=model,
        visits=boosted.visits(columns) if model == "boosted" else 0,
        rows_per_unit=policy.unit.rows,
        unit=policy.budget.unit,
    )


def _network_plan(
    policy: Policy, size: int, columns: int, epsilon: float, delta: float, model: str
) -> TrainingPlan:
    several = policy.unit.column is not None
    return mlp.training_plan(
        epsilon=epsilon,
        delta=delta,
        units=max(1, size // policy.unit.rows),
        unit=policy.budget.unit,
        rows_per_unit=policy.unit.rows if several else None,
    )


def _declared_size(policy: Policy) -> int:
    if policy.public_size is None:
        raise InvalidInput(
            "expected public_size in the policy's [table], got none; say about how many rows there are, as far "
            "as that is public: they are not counted"
        )
    return policy.public_size


def _declared_delta(policy: Policy) -> float:
    if not policy.budget.delta:
        raise InvalidInput(
            "expected delta > 0 in the policy's [budget], got 0; training takes one, well below 1 / number of "
            "people, such as 1e-6"
        )
    return policy.budget.delta


def _write(folder: RunFolder, run: TableRun) -> None:
    """The release: model, plan, figures from public rows; the certificate last, which ends the run."""
    result = Training(
        epsilon=run.epsilon,
        delta=run.delta,
        left_out=run.left_out,
        **{"test_accuracy": None, **run.measured},  # type: ignore[arg-type]  # each is a figure of its own
    )
    write_run(
        folder,
        result,
        certificate=run.certificate,
        plan=run.plan.to_json(),
        model=run.model.to_bytes(),
        seconds=run.seconds,
    )
