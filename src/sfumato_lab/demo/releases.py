"""Run three more kinds of release: the best recipe, labels by private vote, and noised reports."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sfumato import local, pate
from sfumato.caveats import Code
from sfumato.datasets import Dataset
from sfumato.fitting import FitConfig, evaluate, fit
from sfumato.learn import Classifier, features
from sfumato.learn.classifier import learner
from sfumato.local import DIMENSIONS
from sfumato.pate.votes import Integers
from sfumato.randomness import Sampler, SecretStream
from sfumato.runs import Ballot, Reports, Sweep, SweepRun, SyntheticDigits, Votes, read_history
from sfumato.storage import CERTIFICATE, RunFolder
from sfumato_lab.demo.context import DELTA, Progress, StageContext, save_grey, tiles
from sfumato_lab.demo.networks import finished_run, sweep_run
from sfumato_lab.images import Drawn, ImageRequest, StyleSettings, learn_sampler
from sfumato_lab.images import measures as measure
from sfumato_lab.images.styles import DRAW, Images, to_inputs

_PRIOR = "strokes"
_VOTE_EPSILON = 1.0
_REPORT_EPSILON = 4.0
_SHOWN_VOTES = 4
_PLAIN_HEAD = FitConfig(epochs=8, batch_size=256, learning_rate=16.0)  # the best of four that were tried
_FROM_DRAWINGS = "on features that a network learned from drawings, nobody’s data"
_STARTING_FROM_DRAWINGS = "starting from a network that learned from drawings, nobody’s data"


def recipe(context: StageContext) -> Sweep:
    """The recipe that loses least, at several ε; features are computed once, and every run is charged."""
    size = context.size
    cases = [(epsilon, seed) for epsilon in size.recipe_epsilons for seed in size.recipe_seeds]
    ready = Classifier.prepare(
        context.rows(), context.test(), epsilon=cases[0][0], delta=DELTA, recipe=features.DIGITS
    )
    context.progress(0.3)
    runs = []
    for number, (epsilon, seed) in enumerate(cases):
        share = 0.7 / len(cases)
        progress = context.part(0.3 + number * share, 0.3 + (number + 1) * share)
        runs.append(_head(context, ready, epsilon, seed, progress))
    return Sweep(
        method="recipe",
        name="best recipe",
        data=size.data,
        delta=DELTA,
        runs=tuple(runs),
        rows=size.rows,
        test_rows=len(context.test()),
        note=_FROM_DRAWINGS,
        plain_accuracy=_plain_head(ready),
    )


def _plain_head(ready: Classifier) -> float:
    """Return the baseline: the same head on the same features, trained without noise or clipping."""
    assert ready.test is not None
    head = copy.deepcopy(learner(ready.network))
    fit(head, ready.rows, _PLAIN_HEAD, progress=False)
    return evaluate(head, ready.test).accuracy


def _head(context: StageContext, ready: Classifier, epsilon: float, seed: int, progress: Progress) -> SweepRun:
    """One private head from a fresh start; repetitions differ in their noise, which has no seed."""
    folder, ready = RunFolder(context.folder.path / f"epsilon-{epsilon:g}-repetition-{seed}"), ready.at(epsilon)
    if not finished_run(folder, ready.plan):
        with context.ledger() as ledger:
            ready.train(
                ledger=ledger,
                out=folder.discard().path,
                caveats=(Code.EXCERPT(),),
                purpose=f"best recipe at ε = {epsilon:g}, repetition {seed}",
                on_step=lambda trainer: progress(trainer.steps_done / trainer.plan.steps),
            )
    return sweep_run(read_history(folder)[-1], epsilon, seed)


def votes(context: StageContext) -> Votes:
    """Teachers on shards of their own vote on public images, and a student learns from the noisy winners."""
    size = context.size
    public = context.test().take(min(size.vote_images, len(context.test())))
    plan = pate.VotePlan.calibrated(
        epsilon=_VOTE_EPSILON,
        delta=DELTA,
        mechanism="gnmax",
        teachers=size.teachers,
        queries=pate.queries_for(size.teachers, epsilon=_VOTE_EPSILON, delta=DELTA, most=len(public)),
        classes=10,
    )
    settings = pate.PateSettings(
        plan=plan, adaptation=pate.Adaptation(prior=_PRIOR, steps=size.vote_adaptation)
    )
    with context.ledger() as ledger:
        result = pate.run(
            context.rows().excerpt(size.vote_rows),
            public,
            settings,
            delta=DELTA,
            ledger=ledger,
            out=RunFolder(context.folder.path / "labels").discard().path,
            progress=_in_order(context),
        )
    counts = pate.count_votes(result.votes, classes=10)
    ballots = _some_ballots(counts, result.answers.labels, public, result.queries, plan.sigma or 0.0)
    return result.published(size.data, note=_STARTING_FROM_DRAWINGS, ballots=ballots)


def _in_order(context: StageContext) -> Callable[[str, float], None]:
    """Map the progress of PATE's phases to shares of the stage; the shares are rough."""
    phases = {"adapting the prior": (0.0, 0.5), "training the teachers": (0.5, 0.9)}

    def progress(what: str, share: float) -> None:
        first, last = phases.get(what, (0.9, 1.0))
        context.progress(first + (last - first) * share)

    return progress


def _some_ballots(
    counts: Integers, labels: Integers, public: Dataset, queries: Integers, sigma: float
) -> list[Ballot]:
    """From a clear vote to a contested one, each with noise as it may have been, given the answer.

    Votes are private: they are shown here because everybody has MNIST.
    """
    order = np.argsort(-counts.max(axis=1))
    chosen = order[np.linspace(0, len(order) - 1, min(_SHOWN_VOTES, len(order))).astype(int)]
    sampler = SecretStream()
    return [
        Ballot(
            counts=tuple(counts[one].tolist()),
            noisy=tuple(_with_noise(counts[one], int(labels[one]), sigma, sampler).round(1).tolist()),
            label=int(labels[one]),
            truth=int(public.targets[queries[one]]),
        )
        for one in chosen
    ]


def _with_noise(
    counts: Integers, label: int, sigma: float, sampler: Sampler, *, tries: int = 10_000
) -> npt.NDArray[np.float64]:
    """Noised counts whose winner is `label`: the first such draw, or the last if none is."""
    draws = counts + sigma * sampler.normal(tries * counts.size).reshape(tries, -1)
    agreeing = np.flatnonzero(draws.argmax(axis=1) == label)
    found: npt.NDArray[np.float64] = draws[agreeing[0] if agreeing.size else -1]
    return found


def reports(context: StageContext) -> Reports:
    """Noise every digit and its label before they leave the person, and train on the reports.

    No server keeps the clear digits, so the people's ledger is apart, with room for one report of each.
    """
    place = context.folder.release / "noised.npz"
    if not place.exists():
        _report_all(context, place)
    context.progress(0.7)
    noised = local.read_noised(place)
    found = local.learn(noised)
    test = context.test()
    right = float(np.mean(found.predict(test.inputs[:, 0]) == test.targets))
    return Reports(
        epsilon=noised.plan.price,
        delta=noised.plan.delta,
        people=len(noised),
        test_accuracy=right,
        note=_FROM_DRAWINGS,
        data=context.size.data,
    )


def _report_all(context: StageContext, place: Path) -> None:
    rows = context.rows()
    plan = local.ReportPlan(
        classes=10, dimension=DIMENSIONS[_PRIOR], epsilon=_REPORT_EPSILON, delta=0.0, randomiser="direction"
    )
    ledger_path = context.folder.path / "people.db"
    with local.open_ledger(ledger_path, epsilon=_REPORT_EPSILON, delta=0.0) as ledger:
        _, certificate = local.release_images(
            rows.inputs[:, 0],
            rows.targets,
            plan=plan,
            view=local.build_view(_PRIOR),
            name=context.size.data,
            sampler=SecretStream(),
            ledger=ledger,
            out=place,
        )
    certificate.write(context.folder.release / "certificate.json")


_EPSILON = 1.0
_SHEET = "synthetic.png"
_ROWS = ("drawings", "synthetic", "synthetic", "nearest real")
_SETTINGS = StyleSettings(drawings=5000, directions=32)  # less than by default, for fewer people and seconds
_COMPARED = 300  # images whose nearest neighbours are looked for
_EPOCHS, _WIDTH, _READ = 6, 16, 5000  # of the networks, and real images that the second learns from
_EMPTY = np.zeros((28, 28), dtype=np.uint8)  # of a class without images


def synthetic_digits(context: StageContext) -> SyntheticDigits:
    """Release synthetic digits, charged to the ledger of all stages; compare them with public real digits."""
    rows, test = context.rows().excerpt(context.size.synthetic_rows), context.test()
    request = ImageRequest.of(
        rows,
        images=context.size.synthetic_images,
        epsilon=_EPSILON,
        delta=DELTA,
        settings=_SETTINGS,
        recipe=features.DIGITS,
    )
    with context.ledger() as ledger:
        sampler = learn_sampler(request, rows, ledger=ledger, sampler=SecretStream())
    assert sampler.certificate is not None
    sampler.certificate.write(context.folder.release / CERTIFICATE)
    context.progress(0.5)
    drawn = sampler.draw(request.images, seed=1)
    context.progress(0.7)
    real = _grey(rows)
    save_grey(_sheet(drawn, real), context.folder.figures / _SHEET)
    learned = measure.learn(drawn.images, drawn.labels, classes=10, epochs=_EPOCHS, width=_WIDTH)
    reader = measure.learn(real[:_READ], rows.targets[:_READ], classes=10, epochs=_EPOCHS // 2, width=_WIDTH)
    return SyntheticDigits(
        data=context.size.data,
        epsilon=request.plan.epsilon(DELTA),
        delta=DELTA,
        people=len(rows),
        images=len(drawn),
        left_out=drawn.unsure / drawn.tried,
        agreement=measure.accuracy(reader.net, to_inputs(drawn.images), measure.to_targets(drawn.labels)),
        test_accuracy=measure.accuracy(learned.net, *features.fitted(test).tensors()),
        nearest=float(np.median(measure.nearest_distances(drawn.images[:_COMPARED], real))),
        nearest_test=float(np.median(measure.nearest_distances(_grey(test)[:_COMPARED], real))),
        sheet=_SHEET,
        rows=_ROWS,
    )


def _sheet(drawn: Drawn, real: Images) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """A column for each class: a drawing, two synthetic images, and the real one nearest to the second."""
    drawings, kinds = DRAW[_SETTINGS.prior](400, seed=3)
    first = [drawings[np.flatnonzero(kinds == digit)[0]] for digit in range(10)]
    chosen = [np.flatnonzero(drawn.labels == digit)[:2] for digit in range(10)]
    shown = [[drawn.images[places[at]] if len(places) > at else _EMPTY for places in chosen] for at in (0, 1)]
    near = [real[measure.nearest_places(image[np.newaxis], real)[0]] for image in shown[1]]
    return tiles(np.stack([*first, *shown[0], *shown[1], *near]) / 255, across=10)


def _grey(rows: Dataset) -> Images:
    """(rows, 28, 28) in bytes."""
    found: Images = np.rint(255 * features.fitted(rows).inputs[:, 0]).astype(np.uint8)
    return found
