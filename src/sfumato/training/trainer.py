"""DP-SGD over any PyTorch module and optimizer."""

from __future__ import annotations

import copy
import math
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _validate
from sfumato.accounting import DpEvent, NoEvent, compose
from sfumato.caveats import Code
from sfumato.datasets import Chosen
from sfumato.errors import InvalidInput, Refused, UnsupportedModel
from sfumato.ledger import Certificate, Charge, Ledger, Prices, Reservation, Unrecorded
from sfumato.mechanisms import Gaussian, GridGaussian, LambdaCGD, correlated_noise
from sfumato.mechanisms.correlated import Past
from sfumato.randomness import NoiseSource, Sampler, SecretStream, caveats_of_sampler
from sfumato.training.checks import as_written, check_constants
from sfumato.training.clip import SMALLEST_NORM, ChunkResult, Flat
from sfumato.training.data import TrainingData, check_units, chosen_by
from sfumato.training.devices import device_of
from sfumato.training.distributed import ALONE, Peers, digest, share_out, terms
from sfumato.training.engine import Engine, settings_for
from sfumato.training.losses import LossFunction, Views, same_settings
from sfumato.training.noise import NoisySum, joining_error
from sfumato.training.plan import TrainingPlan
from sfumato.training.sampling import Batch, Drawable, Draws, Mask, StepUnits
from sfumato.training.state import (
    Callback,
    PrivateLog,
    Setup,
    StepReport,
    TrainerState,
    WeightAverage,
    setup_of,
)

_NEW_GRAPH = (
    "expected model, loss and views that compute what they did, got another graph of them; their code reads a "
    "value that has changed since, such as an entry of a dict or a global name in an inner function: make it "
    "an attribute of the module, or a variable that the loss itself closes over"
)
_GRAPHS = 2  # kept for code that alternates, such as two losses
_LEAST_CHUNK = 32  # rows
_FARTHEST = 2.0**20  # that an adaptive clipping norm goes from the plan's


class PrivateTrainer:
    """Take the steps of a plan: sample, clip each unit's gradient, sum, add noise, let the optimizer move.

    Wraps neither the model nor the optimizer. Model, loss and views are traced into a graph first, on tensors
    without values and on made-up rows; private rows meet the graph and nothing else. Code that cannot be
    trained is refused there. Then the whole plan is reserved in the ledger, before the first row is looked at.
    `finish` settles it to the steps that were started. Figures of steps that neither `save_checkpoint` nor
    `finish` has told the ledger of are not yet released: do not pass them on.

    *Guarantees*: sampler, noise and price come from the one plan; a step draws noise for every parameter and
    moves the weights, or raises; a unit whose gradient is not finite, or that meets a value without a result,
    adds nothing, which only the private log tells; an empty batch takes a step of noise like any other. Random
    draws of views and of the forward pass are inputs of the graph, from the secret stream. A step that is
    interrupted leaves no sum behind.

    Args:
        model: Any module that a graph can be traced of, without batch statistics. Of one that torch.compile
            made, the module inside is trained.
        optimizer: Any torch optimizer over the model's parameters.
        plan: The plan of the run, priced.
        ledger: Where the plan is reserved; without one nothing is recorded, and the certificate says so.
        purpose: One line for the ledger's readers.
        sampler: The secret stream. A seeded one is for tests: ledger and certificate then say that the run
            is not private.
        peers: The processes that take each step together.
        public: Public tensors that model, loss or views bring along though they are large.
        on_reserved: Called with the trainer inside the ledger's transaction that reserves the plan, before a
            row is touched, to note down where the run can be taken up after a crash. If it raises, nothing is
            reserved.
        callbacks: Told of steps once they are durable.

    Raises:
        UnsupportedModel: If gradients of single rows cannot be told apart.

    >>> from sfumato.training import TrainingPlan, cross_entropy
    >>> model = nn.Linear(2, 2)
    >>> plan = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=2, noise_multiplier=4.0)
    >>> trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    >>> for batch in trainer.batches((torch.rand(20, 2), torch.zeros(20, dtype=torch.long))):
    ...     trainer.step(batch, cross_entropy)
    >>> trainer.epsilon(1e-5) < 2
    True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: TrainingPlan,
        *,
        ledger: Ledger | None = None,
        purpose: str = "private training",
        sampler: Sampler | None = None,
        peers: Peers = ALONE,
        public: Sequence[Tensor] = (),
        on_reserved: Callable[[PrivateTrainer], None] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        model = as_written(model)
        self.model, self.optimizer, self._plan, self.ledger = model, optimizer, plan, ledger
        self.purpose, self.on_reserved = purpose, on_reserved
        self._sampler: Sampler = SecretStream() if sampler is None else sampler
        self._correlated = correlated_noise(plan.noise, self._sampler)
        self.at_the_end: dict[Path, Callable[[], None]] = {}  # removes secrets beside each checkpoint
        self.peers, self._public = peers, tuple(public)
        self.parameters = trainable_parameters(model)
        _check_optimizer(optimizer, self.parameters)
        self.average = WeightAverage(self.parameters, plan.average_decay)
        self.private_log = PrivateLog()
        self.callbacks = tuple(callbacks)
        self._untold: list[StepReport] = []  # steps that are not durable yet
        self.keeps_checkpoints = False
        self._clip_norm = plan.clip_norm
        self._steps_done = 0
        self._steps_started = 0
        self.eta: float | None = None
        self.reservation: Reservation | None = None
        self.charge: Charge | None = None
        self._ended_before = False  # whether it was taken up after its last step, settled already
        self._seeded_before = False  # whether steps before a resume had noise from a seeded stream
        self._chosen = Chosen()  # the draws that chose rows, or when to stop
        self.device = device_of(model)
        self._sum = NoisySum(self.parameters)
        self._chunk_error = 0.0
        self._largest_chunk = 0
        self._chunks = 0
        self._reserved = self._reserving = False
        self._caveats: set[str] = set(caveats_of_sampler(self._sampler))  # from the steps so far
        self._eta_before: float | None = None  # the largest of steps before a resume
        self.setup: Setup = setup_of(optimizer)  # that checkpoints keep, and compare
        self._mine: Mask | None = None  # the units that this rank works on
        self._draws = Draws(plan, self._sampler)
        self._engine: Engine | None = None
        self._traced_for: TrainingData | None = None
        self._modes: dict[nn.Module, bool] = {}  # of the last step
        self._engines: deque[tuple[list[Any], Engine]] = deque(maxlen=_GRAPHS)  # with their settings
        self._graph_before: Mapping[str, str] = {}  # of steps before a resume, where another is not accepted
        self._prepared_for: Engine | None = None  # for which chunks and η were chosen

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Refused(
            "expected one trainer for a run, got a copy of it; what was paid for once would be taken twice: "
            "make a new trainer, or let one go on from a checkpoint with resume()"
        )

    # Taking steps

    def batches(
        self,
        data: Any,
        *,
        units: npt.ArrayLike | None = None,
        views: Views | None = None,
        example: Any = None,
    ) -> Iterator[Batch]:
        """Draw the batches of all steps that are left, each to be handed to `step`.

        The first step reserves the whole plan in the ledger; if that has no room for it, nothing is drawn.

        Args:
            data: (inputs, targets), anything with `.inputs` and `.targets`, a map-style data set, or a
                DataLoader of one. A loader's collate_fn is used, its sampling is not, and its workers read
                the rows of the next step meanwhile.
            units: The person behind each row. Required where the plan is about persons.
            views: `views(inputs)` returns K random views of each row, (rows, K, …), whose gradients are
                averaged before clipping.
            example: A public (input, target) like those of a map-style data set. Without it the first
                record is asked for shape and type, and the certificate says so.

        Yields:
            A batch for each step.

        Raises:
            BudgetExceeded: If the ledger has no room for the plan.
        """
        if self._ended_before and self.steps_done == self.plan.steps:
            return
        with self.peers.together("to read its data"):
            check_units(self.plan, data, units)
            source = TrainingData(
                data, units=units, rows_per_unit=self.plan.rows_per_unit, views=views, example=example
            )
            self.rest_on(chosen_by(data))
            if source.read_by_code:
                self._caveats.add(Code.ITEMS_BY_OWN_CODE())
            if source.shape_was_read:
                self._caveats.add(Code.SHAPE_READ())
            self._check_room()
            drawable = Drawable.of(data, units)
            goes_on = self._draws.goes_on(drawable, start=self.steps_done)
        self._join(data, units, views, goes_on=goes_on)
        weights = (*self.model.parameters(), *self.model.buffers(), *self.average.values.values())
        self.peers.share_weights(weights)
        yield from self._draws.batches(
            drawable,
            source,
            self._mine,
            start=self.steps_done,
            chunks=lambda: self._chunks if self._reserved else 0,  # no row is read before it is paid for
        )
        if self.steps_done == self.plan.steps:
            self.finish()

    def step(self, batch: Batch, loss_fn: LossFunction) -> None:
        """Take one private step. Nothing that depends on the batch is returned.

        Args:
            batch: A batch that `batches` gave.
            loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        """
        units = self._check_turn(batch)
        for parameter in self.parameters.values():
            parameter.grad = None  # it decides nothing
        with self.peers.together("to look at its model and loss"):
            engine = self._traced(units.data, loss_fn)
            if self._graph_before:
                _check_resumed_graph(self._graph_before, engine)
                self._graph_before = {}
        if self.eta is None or (not self._reserved and self._prepared_for is not engine):
            with self.peers.together("to look at its model"):
                self._prepare(units.data, engine)
            facts = {"bound of rounding": digest(str(self.eta)), "graph": digest(engine.digest)}
            self.peers.require_same(facts, remedy="give each rank rows, and the same code")
        self._reserve()
        self._start(batch)
        mechanism = self._mechanism()
        failed: BaseException | None = None
        try:
            with self.peers.together("in a step"):
                below: float = self._add_up(units, engine, mechanism)
            gradients = self.peers.release(
                self._sum, mechanism, self._noise_source, divisor=self.plan.expected_batch
            )
            below = self._noisy_count(below)
        except BaseException as error:
            self._sum.discard()
            failed = _bare(error)
        if failed is not None:
            raise failed  # out here, where no error is handled any more that it would remember
        self._move(gradients)
        self._adapt(below)
        self.average.update()
        self.private_log.end_step()
        self._steps_done += 1
        self._note(gradients)

    def rehearse(self, rows: Any, loss_fn: LossFunction, *, views: Views | None = None) -> None:
        """Trace model and loss as the first step would, for rows that are public; nothing is charged.

        Args:
            rows: Public rows with the shapes and types of those to come, as `batches` takes them.
            loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
            views: K random views of each row, as `batches` will be given them.

        Raises:
            UnsupportedModel: If model or loss mix rows.
            Refused: If this trainer has taken steps.
        """
        if self._reserved:  # chunks and η of another graph would be those of the steps to come
            raise Refused("expected a rehearsal before the first step, got one after it; make another trainer")
        source = TrainingData(rows, rows_per_unit=self.plan.rows_per_unit, views=views)
        self._prepare(source, self._traced(source, loss_fn))

    def _note(self, gradients: dict[str, Tensor]) -> None:
        """Tell callbacks of the step, or keep it until it is durable."""
        if self.callbacks:
            norms = torch.stack([torch.linalg.vector_norm(part.double()) for part in gradients.values()])
            report = StepReport(
                step=self.steps_done,
                learning_rate=float(self.optimizer.param_groups[0]["lr"]),
                clip_norm=self.clip_norm,
                gradient_norm=float(torch.linalg.vector_norm(norms)),
            )
            self._untold.append(report)
        if self.ledger is None and not self.keeps_checkpoints:
            self.tell_callbacks()

    def tell_callbacks(self) -> None:
        """Tell of the steps that are durable now."""
        waiting, self._untold = self._untold, []
        for report in waiting:
            for callback in self.callbacks:
                callback.on_step(report)

    def _traced(self, data: TrainingData, loss_fn: LossFunction) -> Engine:
        """Return the graph of model, loss and views, traced again where a setting has changed."""
        settings = settings_for(self.model, loss_fn, data.example, data.views)
        found = next((engine for before, engine in self._engines if same_settings(before, settings)), None)
        if found is not None and (found, data) != (self._engine, self._traced_for):
            check_constants(found.row, self.model, self._public, data.held)
            found = found if found.digest_now() == found.digest else None
        if found is None:
            self._check_parameters()
            found = Engine(
                self.model, loss_fn, data.example, views=data.views, public=self._public, data=data.held
            )
            self._engines.appendleft((settings, found))
            self._caveats.update(found.caveats)
        self._engine, self._traced_for = found, data
        self._modes = {module: module.training for module in self.model.modules()}
        return found

    def check_graph(self) -> None:
        """Trace again, and refuse another graph than that of the steps so far: values in it are stale.

        It is traced in the modes of the steps, as a loop may evaluate its model before it saves. A setting that
        the next step will notice, such as a variable of the loss, may have changed.
        """
        engine, data = self._engine, self._traced_for
        if engine is None or data is None or self._graph_before or not self._steps_done:
            return
        settings = next(before for before, made in self._engines if made is engine)
        now = {module: module.training for module in self.model.modules()}
        try:
            for module, mode in self._modes.items():
                module.training = mode
            seen = settings_for(self.model, engine.loss_fn, data.example, data.views)
            stale = same_settings(settings, seen) and engine.digest_now() != engine.digest
        finally:
            for module, mode in now.items():
                module.training = mode
        if stale:
            raise Refused(f"{_NEW_GRAPH}; go on from the last checkpoint, or begin anew")

    def _graph(self) -> dict[str, str]:
        """Return the digest of the graph of the steps so far, and the version of torch that runs it."""
        if self._engine is None or self._graph_before:
            return dict(self._graph_before)
        return {"digest": self._engine.digest, "torch": torch.__version__}

    def _check_parameters(self) -> None:
        """Refuse a model whose parameters are not those that noise is drawn for and the optimizer moves."""
        now = trainable_parameters(self.model)
        same = [name for name, parameter in self.parameters.items() if now.get(name) is parameter]
        if other := sorted(set(self.parameters) ^ set(now) or set(now).difference(same)):
            raise Refused(
                f"expected the parameters that the trainer was made with, got others: {', '.join(other[:3])}; "
                "freeze, add and replace layers before, or make another trainer with what is left of the budget"
            )

    def _add_up(self, units: StepUnits, engine: Engine, mechanism: GridGaussian) -> int:
        """Add the clipped gradients of a step; return the count of adaptive clipping, which has no noise."""
        clipping, below = self.plan.clipping_at(self.clip_norm), 0
        for number, rows in units.chunks(self._chunks):
            result = engine.clipped(
                rows.inputs,
                rows.targets,
                clipping,
                units=rows.units,
                into=self._sum.ground(),
                sampler=self.sampler,
            )
            self._check_rounding(result)
            self._sum.add(result.sums, mechanism, chunk=number)
            below += self._below(result)
            self.private_log.add(result)
        return below

    def finish(self) -> Charge | None:
        """Settle the ledger to the steps that were started, and return the charge; no more steps are taken.

        Before the last step of the plan this makes a run that was stopped early, whose certificate says so: its
        price holds however the stop was decided, and is not that of a shorter plan.
        """
        if self.reservation is not None:
            started = None if self.steps_started >= self.plan.steps else self.plan.event(self.steps_started)
            self.charge = self.reservation.settle(started, private=self.private)
            self.reservation = None
        if self._correlated is not None:
            self._correlated.forget()
        for forget in self.at_the_end.values():
            forget()
        self.tell_callbacks()
        return self.charge

    @property
    def plan(self) -> TrainingPlan:
        """The plan by which the run is priced; it is never replaced."""
        return self._plan

    @property
    def steps_done(self) -> int:
        """How many steps were taken."""
        return self._steps_done

    @property
    def steps_started(self) -> int:
        """How many steps were begun; these are paid for."""
        return self._steps_started

    @property
    def clip_norm(self) -> float:
        """The clipping norm of the next step."""
        return self._clip_norm

    @property
    def is_fresh(self) -> bool:
        """Whether it has neither begun a step nor shown a batch."""
        return not (self.steps_started or self._draws.began)

    @property
    def sampler(self) -> Sampler:
        """The stream of noise and samples; it is never replaced."""
        return self._sampler

    @property
    def private(self) -> bool:
        """Whether no step had predictable noise, or units chosen by predictable draws."""
        return self.sampler.private and not self._seeded_before and self._chosen.private

    def rest_on(self, chosen: Chosen) -> None:
        """Note that rows, or when to stop, were chosen by these draws; ledger and certificate then say so."""
        self._chosen = self._chosen.joined(chosen)
        self._caveats.update(chosen.caveats)

    @property
    def state(self) -> TrainerState:
        """The state of the run, besides weights and optimizer."""
        return TrainerState(
            step=self.steps_done,
            clip_norm=self.clip_norm,
            average=dict(self.average.values),
            averaged=self.average.updates,
            private=self.private,
            reservation=self.reservation,
            past_noise=self._past_noise(),
            caveats=frozenset(self._caveats),
            eta=self._largest_eta,
            setup=self.setup,
            graph=self._graph(),
        )

    def take_up(self, state: TrainerState, *, accept_new_graph: bool = False) -> None:
        """Go on from where another run of the same plan was.

        Args:
            state: The state that a checkpoint held.
            accept_new_graph: Go on although model, loss and views have another graph, or torch another version.

        Raises:
            Refused: If this trainer has taken steps of its own, or lacks the noise that the next ones need.
        """
        if not self.is_fresh:
            raise Refused("expected a fresh trainer; this one has drawn batches or taken steps of its own")
        goes_on = 0 < state.step < self.plan.steps and state.charge is None
        if self._correlated is not None and self.peers.leads and goes_on:
            if state.past_noise is None:
                raise Refused(
                    "expected the noise of past steps, with which that of the next is correlated, got none; it "
                    "was destroyed or left out: start anew"
                )
            self._correlated.go_on(state.past_noise, state.step)
        self.average.take_up(state.average, state.averaged)
        self._clip_norm = state.clip_norm
        self._steps_done = self._steps_started = state.step
        self._seeded_before = not state.private
        self.reservation, self.charge = state.reservation, state.charge
        self._ended_before = state.charge is not None
        self._caveats |= state.caveats
        self._eta_before = state.eta
        self.setup = {**self.setup, **state.setup}
        self._graph_before = {} if accept_new_graph or not state.step else state.graph

    # Price and certificate

    def epsilon(
        self, delta: float, *, beside: DpEvent | None = None, beside_planned: DpEvent | None = None
    ) -> float:
        """Return ε at δ of the steps so far, as the certificate states it: the smaller of its figures.

        Before the last step that is the price of a run that is stopped here, about that of the whole plan.

        Args:
            delta: The δ at which ε is wanted.
            beside: Further releases of the run.
            beside_planned: All that it could have released, had it not been stopped.
        """
        ran, planned = self._released(beside, beside_planned)
        return Prices.of(ran, delta, relation=self.plan.relation, planned=planned).epsilon

    def epsilon_if_fixed_in_advance(self, delta: float) -> float:
        """Return ε at δ of a plan of as many steps as were started: a running figure for a display.

        It does not hold for a run that is stopped early; `epsilon` does.
        """
        return self.plan.epsilon(delta, self.steps_started)

    def _released(
        self, beside: DpEvent | None, beside_planned: DpEvent | None
    ) -> tuple[DpEvent, DpEvent | None]:
        """Return the event that ran and, if that is not all, the planned one, as the ledger settled them."""
        started = self.steps_started
        ran, planned = self.plan.event(started), self.plan.event() if 0 < started < self.plan.steps else None
        if self.charge is not None:
            ran, planned = self.charge.event, self.charge.planned
        other = beside or NoEvent()
        if planned is not None:
            planned = compose(planned, beside_planned or other)
        return compose(ran, other), planned

    @property
    def caveats(self) -> tuple[str, ...]:
        """The sentences of the certificate on how the steps so far were made."""
        return (*_standing_caveats(self.plan), *sorted(self._caveats))

    def certificate(
        self,
        *,
        delta: float,
        caveats: tuple[str, ...] = (),
        beside: DpEvent | None = None,
        beside_planned: DpEvent | None = None,
    ) -> Certificate:
        """State the price of the steps so far and its assumptions.

        With a ledger, call `finish` first: before that the certificate names no charge, and says so.

        Args:
            delta: The δ at which it is priced.
            caveats: Sentences to add.
            beside: Further releases of the run; a ledger has entries of its own for them.
            beside_planned: All that it could have released, had it not been stopped.

        Returns:
            The certificate.
        """
        caveats = tuple(dict.fromkeys((*self.caveats, *caveats)))
        eta = self._largest_eta
        if self.ledger is not None and self.charge is not None:
            return self.ledger.certificate(self.charge, plan=self.plan.to_json(), eta=eta, caveats=caveats)
        ran, planned = self._released(beside, beside_planned)
        return Unrecorded(delta=delta).pay_for(
            ran,
            purpose=self.purpose,
            relation=self.plan.relation,
            unit=self.plan.unit,
            private=self.private,
            planned=planned,
            plan=self.plan.to_json(),
            eta=eta,
            caveats=caveats,
            reserved=None if self.reservation is None else self.reservation.head,
        )

    @property
    def _largest_eta(self) -> float | None:
        return max((eta for eta in (self.eta, self._eta_before) if eta is not None), default=None)

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Yield the model with its averaged weights, if the plan averages; afterwards it is as it was."""
        kept = {name: self.parameters[name].detach().clone() for name in self.average.values}
        try:
            self.use_average()
            yield self.model
        finally:
            self.average.put(kept)

    def use_average(self) -> None:
        """Put the averaged weights, if the plan averages, in the place of the last."""
        self.average.put(self.average.values)

    # Inside

    def _prepare(self, source: TrainingData, engine: Engine) -> None:
        """Choose the chunks from declared figures and shapes alone, and try a step of the optimizer."""
        batch = self.plan.expected_batch / self.peers.count
        rows_a_chunk = engine.chunk_rows()
        self._choose_chunks(source, engine, rows_a_chunk)
        if self.plan.shares is not None:  # of the margin that all holders declared; smaller chunks round less
            margin = self.plan.mechanism_of_shares().margin
            while self._mechanism().eta > margin and rows_a_chunk > _LEAST_CHUNK:
                rows_a_chunk //= 2
                self._choose_chunks(source, engine, rows_a_chunk)
        if source.rows_per_unit == 1:
            mean = batch / self._chunks
            varies = self.plan.sampling == "poisson" and (self._chunks > 1 or self.plan.sample_rate < 1)
            engine.prepare(mean, spread=mean**0.5 if varies else 0.0)
        _try_step(self.model, self.optimizer, engine.clipped(*source.example, Flat(norm=1.0)).sums)
        mechanism = self._mechanism()
        if self._correlated is not None:
            self._correlated.check_scale(mechanism.sigma / mechanism.grid)
        self.eta, self._prepared_for = mechanism.eta, engine

    def _choose_chunks(self, source: TrainingData, engine: Engine, rows_a_chunk: int) -> None:
        """Set the number of chunks a step, and how much the sum of one of them may be rounded."""
        batch = self.plan.expected_batch / self.peers.count
        self._chunks = max(1, round(batch * source.rows_per_unit / rows_a_chunk))
        # Ten standard deviations above what is expected; a larger chunk means a wrong declaration.
        mean = batch / self._chunks
        self._largest_chunk = int(mean + 10 * mean**0.5 + 16)
        self._chunk_error = engine.rounding_bound(units=self._largest_chunk, rows_per_unit=source.rows_per_unit)

    def _check_room(self) -> None:
        """Refuse now a run that a step or the ledger would refuse later; it reserves nothing."""
        self._check_open()
        if self.ledger is not None and self.reservation is None and self.peers.leads:
            self.ledger.check(
                self.plan.event(), relation=self.plan.relation, unit=self.plan.unit, resumable=True
            )

    def _join(self, data: Any, units: npt.ArrayLike | None, views: Views | None, *, goes_on: bool) -> None:
        """Make sure that all ranks are about to do the same, on units that are on one rank each.

        Where units were drawn before from the same data, each stays on its rank.
        """
        if self.peers.several:
            with self.peers.together("to say what it is about to do"):
                facts = terms(self, data, units, views)
                facts["batches that were drawn"] = digest(str((goes_on, self._draws.waiting)))
            self.peers.require_same(facts, remedy="start all ranks with the same script, files and settings")
            if not goes_on:
                self._mine = share_out(self.peers, data, units, key=self.peers.share_key(self.sampler))

    def _reserve(self) -> None:
        """Reserve the whole plan, or go on under a reservation, before the first row is looked at."""
        if self._reserved:
            return
        self.reservation = self.peers.reserve(
            self.ledger,
            self.plan.event(),
            held=self.reservation,
            purpose=self.purpose,
            relation=self.plan.relation,
            unit=self.plan.unit,
            private=self.private,
            begun=False,
            noted=None if self.on_reserved is None else self._note_reservation,
        )
        with self.peers.together("to begin under its reservation"):
            if self.reservation is not None:
                self.reservation.begin()
        self._reserved = True

    def _note_reservation(self, reservation: Reservation) -> None:
        """Let `on_reserved` note down a reservation that is durable only after it."""
        assert self.on_reserved is not None
        self.reservation, self._reserving = reservation, True
        try:
            self.on_reserved(self)
        finally:
            self.reservation, self._reserving = None, False

    @property
    def _noise_source(self) -> NoiseSource:
        return self.sampler if self._correlated is None else self._correlated

    def _past_noise(self) -> Past | None:
        """Return the noise that the steps to come need; none before the first and after the last."""
        noise = self._correlated
        if (
            noise is None
            or noise.forgotten
            or not self.peers.leads
            or not 0 < self.steps_done < self.plan.steps
        ):
            return None
        if noise.drawn != self.steps_done:
            raise Refused(
                f"expected the noise of {self.steps_done} steps, got {noise.drawn}; a step failed after "
                "its noise was drawn: go on from the last checkpoint"
            )
        return noise.past()

    def _mechanism(self) -> GridGaussian:
        return GridGaussian(
            clip_norm=self.plan.clipping_at(self.clip_norm).sensitivity,
            dimension=self._sum.dimension,
            noise_multiplier=self.plan.noise_at(self.steps_done),
            float_error=self._chunk_error + joining_error(self._chunks, self._largest_chunk),
        )

    def _check_turn(self, batch: Batch) -> StepUnits:
        """Return the draw of the next step, if that may be taken and this batch stands for it."""
        self._check_open()
        return self._draws.find(batch, self.steps_done)

    def _check_open(self) -> None:
        """Refuse steps of a trainer that is finished, or one of whose steps was begun and not ended."""
        if self.charge is not None:
            raise Refused(
                f"expected a run that is not finished, got one that ended after {self.steps_done} of "
                f"{self.plan.steps} steps, which the ledger has settled; its model can be released as it is; "
                "for further steps begin a new run, which is charged anew: a fresh trainer without resume(), "
                "or another folder"
            )
        if self.steps_started != self.steps_done or self._reserving:
            raise Refused(
                f"expected to take step {self.steps_done} once, got it again; it was begun, and a step that "
                "failed is not repeated: go on from a checkpoint, or make a new trainer"
            )

    def _start(self, batch: Batch) -> None:
        """Count the step. Code that ran since its turn was checked, a loss or a callback, may have taken it."""
        self._check_turn(batch)
        self._draws.take(batch, self.steps_done)
        self._steps_started += 1

    def _check_rounding(self, result: ChunkResult) -> None:
        if len(result.norms) > self._largest_chunk or result.rounding > self._chunk_error * (1 + 1e-9):
            raise Refused(
                f"expected at most {self._largest_chunk} units in a chunk; the data has many more than were "
                "declared as public_size, or by the plan: declare the size it may have"
            )

    def _move(self, gradients: dict[str, Tensor]) -> None:
        versions = [parameter._version for parameter in self.parameters.values()]
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name].to(parameter.device, parameter.dtype)
        self.optimizer.step()
        if any(group.get("fused") for group in self.optimizer.param_groups):
            return  # torch's fused kernels write without counting a version
        for (name, parameter), version in zip(self.parameters.items(), versions, strict=True):
            if parameter._version == version:
                raise Refused(f"the optimizer did not move {name}; nothing was learned from what was spent")

    def _below(self, result: ChunkResult) -> int:
        """Return twice the number of units below the clipping norm, each shifted by ½; 0 if it is fixed."""
        if self.plan.adaptive is None:
            return 0
        return int((result.norms <= self.clip_norm).all(1).sum()) * 2 - len(result.norms)

    def _noisy_count(self, below: float) -> float:
        """Return the noisy number of units below the clipping norm, each shifted by ½."""
        if self.plan.adaptive is None:
            return 0.0
        mechanism = Gaussian(sensitivity=0.5, sigma=self.plan.adaptive.count_noise)
        return self.peers.release_count(below / 2, mechanism, self.sampler)

    def _adapt(self, noisy: float) -> None:
        """Follow the quantile of norms with a noisy count, within reach of the plan's norm."""
        if self.plan.adaptive is None:
            return
        choice, norm = self.plan.adaptive, self.plan.clip_norm
        fraction = noisy / self.plan.expected_batch + 0.5
        factor = math.exp(min(50.0, max(-50.0, -choice.rate * (fraction - choice.quantile))))
        least = max(norm / _FARTHEST, SMALLEST_NORM)
        self._clip_norm = min(norm * _FARTHEST, max(least, self.clip_norm * factor))


def _check_resumed_graph(before: Mapping[str, str], engine: Engine) -> None:
    """Refuse to go on with another graph than a checkpoint names, or with one that another torch runs."""
    accept = "or accept the new graph: --accept-new-graph, accept_new_graph=True in Python"
    if before["torch"] != torch.__version__:
        raise Refused(
            f"expected torch {before['torch']}, with which the run began, got {torch.__version__}, whose "
            f"graphs may compute something else; install the former, {accept}"
        )
    if before["digest"] != engine.digest:
        raise Refused(f"{_NEW_GRAPH}; give the same code and values as before, {accept}")


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that learn, by name; a model without any is refused."""
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not found:
        raise UnsupportedModel(
            "expected a model with trainable parameters, got none; set requires_grad on some"
        )
    return found


def _check_optimizer(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> None:
    remedy = "as in torch.optim.SGD(model.parameters(), lr=0.1)"
    _validate.instance("optimizer", optimizer, torch.optim.Optimizer, remedy=remedy)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, parameter in parameters.items() if id(parameter) not in held]
    if missing:
        raise InvalidInput(
            f"expected the optimizer to hold every trainable parameter, but it lacks {', '.join(missing)}; "
            "add them, or freeze them with requires_grad_(False)"
        )
    strangers = held - {id(parameter) for parameter in parameters.values()}
    frozen = {id(p) for g in optimizer.param_groups for p in g["params"] if not p.requires_grad}
    if strangers - frozen:
        raise InvalidInput("expected the optimizer to hold the model's parameters only, got others as well")


def _try_step(model: nn.Module, optimizer: torch.optim.Optimizer, sums: dict[str, Tensor]) -> None:
    """Refuse, before the charge, an optimizer that cannot step; it steps with copies, if they can be made."""
    strange = [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]
    if strange:
        raise UnsupportedModel(
            f"expected a state_dict of tensors, which can be saved without running code, got {strange[0]!r}; "
            "leave out get_extra_state"
        )
    try:
        trial, stepping = copy.deepcopy((model, optimizer))
    except Exception:
        return
    for name, parameter in trial.named_parameters():
        if parameter.requires_grad:
            parameter.grad = sums[name].to(parameter.dtype)
    try:
        stepping.step()
    except Exception as error:  # on made-up rows: its text tells nothing
        raise UnsupportedModel(
            f"expected a step on public rows to work, got {type(error).__name__}: {error}; nothing was charged"
        ) from error


def _standing_caveats(plan: TrainingPlan) -> tuple[str, ...]:
    differences = ", and differences of its draws, are" if isinstance(plan.noise, LambdaCGD) else " is"
    of_order = {"shuffle": (Code.SHUFFLED(),), "cyclic": (Code.FIXED_ORDER(),)}.get(plan.sampling, ())
    return (Code.IDEAL_NORMAL(draws=f"sampler{differences}"), *of_order)


def _bare(error: BaseException) -> BaseException:
    """Return the error without the values in its frames and in those of errors before it: sums without noise.

    The user's code can raise an interrupt that quotes a row, so an interrupt comes back as a new one without
    words or history: a wish to leave the process as that, all others as Ctrl-C.
    """
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            waiting += [each for each in (one.__context__, one.__cause__) if each is not None]
    if isinstance(error, Exception):
        return error
    return SystemExit(1) if isinstance(error, SystemExit) else KeyboardInterrupt()
