"""Train on a table from its policy: price, plan the reading, charge, and only then read a row."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sfumato import _validate
from sfumato.accounting import DpEvent, compose, warn_of_little_protection
from sfumato.accounting import epsilon as epsilon_of
from sfumato.caveats import Code
from sfumato.datasets.dataset import AS_THEY_ARE, Chosen
from sfumato.display import visible
from sfumato.errors import InvalidInput
from sfumato.learn.classifier import HoldOut
from sfumato.learn.table import mlp
from sfumato.learn.table.additive import (
    Additive,
    Boosted,
    Rows,
    Watch,
    fit_additive,
    fit_pairs,
    noisy_counts,
    visits,
)
from sfumato.learn.table.encoding import Encoding, Source, Target, public_rows, within_bound
from sfumato.learn.table.model import Scorer, TableModel, Unlearned, measure
from sfumato.learn.table.plan import MODELS, RELATION, TablePlan
from sfumato.learn.table.sums import ETA, Design
from sfumato.ledger import Certificate, Ledger, Unrecorded
from sfumato.mechanisms import DiscreteLaplace
from sfumato.policy import Policy, left_out_on_purpose
from sfumato.randomness import Sampler, SecretStream, caveats_of_sampler
from sfumato.runs import Training, write_run
from sfumato.storage import RunFolder
from sfumato.training import LossFunction, NoisyAccuracy, PrivateTrainer, TrainingPlan, cross_entropy, train
from sfumato.training.answers import answering
from sfumato.training.data import ChosenRows
from sfumato.training.hold_out import PURPOSE, share_of, size_without

SETTINGS = Code.SETTINGS_UNCHARGED(
    rows="training rows of the public data set Adult, split in two, uncharged, among about a hundred; which "
    "model is the default was settled after its test figures had been seen"
)


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """A released model, its cost, and its figures on public rows, if there are any."""

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
        """Price a run; everything follows from the policy.

        Args:
            policy: The declared table, with `public_size`.
            target: The column to learn.
            epsilon: The ε of training.
            delta: Its δ; the budget's by default.
            model: "linear", "boosted" or "mlp".
            hold_out: Keep rows out of training, and measure accuracy on them at a price.
            leave_out: Columns not to learn from.

        Returns:
            The run, ready to be trained.

        Raises:
            InvalidInput: If the target cannot be learned, no column can be learned from, a column has neither
                bounds nor categories, the policy does not declare its public size, or rows kept out could not
                be measured on.
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
        plan: TablePlan | TrainingPlan
        if model == "mlp":
            plan = mlp.training_plan(
                epsilon=epsilon,
                delta=delta,
                units=max(1, size // policy.unit.rows),
                unit=policy.budget.unit,
                rows_per_unit=None if policy.unit.column is None else policy.unit.rows,
            )
        else:
            columns = len(encoding.encoders)
            plan = TablePlan.calibrated(
                epsilon=epsilon,
                delta=delta,
                public_size=size,
                columns=columns,
                model=model,
                visits=visits(columns) if model == "boosted" else 0,
                rows_per_unit=policy.unit.rows,
                unit=policy.budget.unit,
            )
        return cls(policy=policy, encoding=encoding, target=wanted, plan=plan, delta=delta, hold_out=hold_out)

    @property
    def epsilon(self) -> float:
        return self.plan.epsilon(self.delta)

    @property
    def event(self) -> DpEvent:
        return self.plan.event()

    @property
    def caveats(self) -> tuple[str, ...]:
        return (SETTINGS, *left_out_on_purpose(self.encoding.left_out), *self.notes, *self.chosen.caveats)

    @property
    def events(self) -> list[DpEvent]:
        """All that the run releases: the training, and the accuracy on rows kept out."""
        return [self.event, *([] if self.hold_out is None else [self.hold_out.event])]

    @property
    def epsilon_with_hold_out(self) -> float | None:
        if self.hold_out is None:
            return None
        return epsilon_of(compose(*self.events), self.delta, relation=RELATION)

    @property
    def can_hold_out(self) -> bool:
        """Whether rows could be kept out, to measure on."""
        try:
            check_can_be_measured(self.policy, self.target)
        except InvalidInput:
            return False
        return True

    @property
    def classes(self) -> int | None:
        return None if self.target.classes is None else len(self.target.classes)

    @property
    def releases(self) -> int:
        """The number of noisy releases, which a progress bar counts."""
        return self.plan.steps + (self.plan.visits if isinstance(self.plan, TablePlan) else 0)

    @property
    def loss(self) -> LossFunction:
        return mlp.square_loss if self.classes is None else cross_entropy

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

        Args:
            ledger: Where the run is charged; without one nothing is recorded.
            out: The run folder.
            test: A file of public rows to measure on.
            data: An Arrow table or DataFrame to learn from, instead of the policy's source.
            sampler: The secret stream.
            watch: Called with the number of `releases` that are done.

        Returns:
            The released model and its cost.
        """
        started, unit = time.perf_counter(), self.policy.budget.unit
        if ledger is not None:
            ledger.check_unit(unit)
            ledger.check_dataset(self.policy.dataset)
            if self.hold_out is not None:  # or the model would be paid for, and not its accuracy
                ledger.check(self.events, relation=RELATION, unit=unit)
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
        if held is None or self.hold_out is None:
            return run
        found = accuracy_on(
            model,
            held,
            unit=unit,
            epsilon=self.hold_out.epsilon,
            delta=self.delta,
            ledger=ledger,
            sampler=sampler,
            chosen=self.chosen,
        )
        if folder is not None:
            folder.write_json("hold_out.json", found.to_json())
        return replace(run, held_out=found)

    def _fit_table(
        self, source: Source, ledger: Ledger | None, sampler: Sampler, watch: Watch
    ) -> tuple[TableModel, Certificate, Rows | None]:
        assert isinstance(self.plan, TablePlan)
        plan, encoders, classes = self.plan, self.encoding.encoders, self.classes
        certificate = self._paid(ledger, sampler)
        rows, _, held = self._split(source, sampler)
        design = Design.of(encoders, noisy_counts(rows, encoders, plan, sampler), size=plan.public_size)
        columns = fit_additive(rows, design, plan, classes=classes, sampler=sampler, watch=watch)
        scorer: Additive | Boosted = columns
        if plan.visits:
            scorer = fit_pairs(rows, columns, encoders, plan, classes=classes, sampler=sampler, watch=watch)
        return self.released(scorer), certificate, held

    def _fit_network(
        self, source: Source, ledger: Ledger | None, sampler: Sampler, watch: Watch
    ) -> tuple[TableModel, Certificate, Rows | None]:
        assert isinstance(self.plan, TrainingPlan)
        network = mlp.build(self.encoding.encoders, classes=self.classes)
        self._rehearse(copy.deepcopy(network))
        certificate = self._paid(ledger, sampler)
        rows, units, held = self._split(source, sampler)
        result = train(
            network.module,
            ChosenRows(*self.tensors(rows), self.chosen),
            self.plan,
            delta=self.delta,
            optimization=mlp.OPTIMIZATION,
            loss_fn=self.loss,
            units=units,
            sampler=sampler,
            on_step=lambda trainer: watch(trainer.steps_done),
        ).certificate
        return self.released(network), replace(certificate, eta=result.eta).with_part(result), held

    def _rehearse(self, network: mlp.Network) -> None:
        """Take one step on made-up rows, uncharged, to find failures of the network or the machine now."""
        assert isinstance(self.plan, TrainingPlan)
        cells = np.zeros((2, len(self.encoding.encoders)), dtype=np.int64)
        rows = self.tensors(Rows(cells=cells, target=np.zeros(2)))
        trainer = PrivateTrainer(network.module, mlp.OPTIMIZATION.build(network.module), self.plan)
        units = None if self.policy.unit.column is None else np.arange(2)
        trainer.step(next(trainer.batches(rows, units=units)), self.loss)

    def tensors(self, rows: Rows) -> tuple[Any, Any]:
        targets = rows.target.astype(np.float32 if self.classes is None else np.int64)
        return mlp.dense(self.encoding.encoders, rows.cells), targets

    def _paid(self, ledger: Ledger | None, sampler: Sampler) -> Certificate:
        """Spend, before a row is read."""
        kind = self.plan.model if isinstance(self.plan, TablePlan) else "mlp"
        return (ledger or Unrecorded(delta=self.delta)).pay_for(
            self.event,
            purpose=visible(f"{kind} model of {self.target.name} from table {self.policy.table}"),
            relation=RELATION if isinstance(self.plan, TablePlan) else self.plan.relation,
            unit=self.policy.budget.unit,
            private=self.chosen.private_with(sampler),
            plan=self.plan.to_json(),
            eta=ETA if isinstance(self.plan, TablePlan) else None,
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
    """Write the release: model, plan, figures from public rows; the certificate last, which ends the run."""
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


# Accuracy on private rows that were kept out


def check_can_be_measured(policy: Policy, target: Target) -> None:
    """Refuse targets and rows that a count of right answers does not describe."""
    if target.classes is None:
        raise InvalidInput(
            f"expected a target with categories to count right answers on rows kept out, got {target.name}, a "
            "number; measure on public rows (--test-data)"
        )
    if policy.unit.rows > 1:
        raise InvalidInput(
            f"expected one row of each {policy.budget.unit} to keep some out, got up to {policy.unit.rows}; "
            "rows of one are alike, and would make the accuracy look surer than it is: measure on public rows "
            "(--test-data), or declare rows = 1 in [unit]"
        )


def parted(rows: Rows, share: float, sampler: Sampler) -> tuple[Rows, Rows, npt.NDArray[np.bool_]]:
    """PRIVATE: part rows by secret coins; return the rows to learn from, those kept out, and the coins.

    Coins depend on no data, so that a row that comes or goes moves no other.
    """
    coins = sampler.bernoulli(share, len(rows.target))
    return _chosen(rows, ~coins), _chosen(rows, coins), coins


def accuracy_on(
    model: TableModel,
    rows: Rows,
    *,
    unit: str,
    epsilon: float,
    delta: float,
    ledger: Ledger | None,
    sampler: Sampler,
    chosen: Chosen,
) -> NoisyAccuracy:
    """Return the noisy share of rows kept out that the model gets right, charged before one is looked at.

    *Guarantees*: as of `HeldOut.accuracy`. A row's answer is that row's alone: scores are whole numbers, and a
    network is shown blocks in which a row has the same bits in any company.
    """
    mechanism = DiscreteLaplace.calibrated(sensitivity=1, epsilon=epsilon)
    ask = _answering(model.scorer)
    certificate = (ledger or Unrecorded(delta=delta)).pay_for(
        mechanism.event(),
        purpose=PURPOSE,
        relation=RELATION,
        unit=unit,
        private=chosen.private_with(sampler),
        caveats=chosen.caveats_with(sampler),
    )
    right = ask(rows) == rows.target
    return share_of(right, mechanism, sampler, epsilon=epsilon, certificate=certificate)


def _answering(scorer: Scorer) -> Callable[[Rows], npt.NDArray[np.int64]]:
    """Return a function from rows to predicted classes; a model without one is refused before a charge."""
    if isinstance(scorer, mlp.Network):
        ask, encoders = answering(scorer.module), scorer.encoders
        return lambda rows: ask(torch.from_numpy(mlp.dense(encoders, rows.cells)))
    return lambda rows: _best(scorer.scores(rows.cells))


def _best(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)


def _chosen(rows: Rows, which: npt.NDArray[np.bool_]) -> Rows:
    return Rows(cells=np.asfortranarray(rows.cells[which]), target=rows.target[which])
