"""`sfumato local`: noise data before it leaves the person, and learn from the reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import LeaveOut, Rule, check
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.datasets import Dataset
    from sfumato.randomness import SecretStream

app = typer.Typer(
    help="Noise data before it leaves the person, and learn from the noised data.", no_args_is_help=True
)
Seed = Annotated[
    int | None,
    typer.Option("--test-seed", help="Seed for the noise, for tests only: the release is marked not private."),
]

RULES = (
    Rule(
        option="policy",
        excludes=("delta", "randomiser", "prior", "dimension", "size", "classes"),
        because="the policy says what is reported of a table, and how",
    ),
    Rule(option="delta", needs=("randomiser=gaussian",), because="directions are reported with δ = 0"),
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="local")


@app.command()
def release(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="mnist, fashion-mnist, digits, a .npz of images, or a table's policy (.toml).")
    ],
    out: Annotated[Path, typer.Option(help="File for the noised data. The certificate is written beside it.")],
    epsilon: Annotated[float | None, typer.Option(help="ε for each person's record, label included.")] = None,
    delta: Annotated[
        float, typer.Option(help="δ of Gaussian reports. Directions have δ = 0.", rich_help_panel="Images")
    ] = 1e-5,
    randomiser: Annotated[
        str, typer.Option(help="direction (pure ε) or gaussian.", rich_help_panel="Images")
    ] = "direction",
    prior: Annotated[
        str | None,
        typer.Option(
            help="strokes, strokes-wide, strokes-wild, strokes-rare, strokes-together (several of them), "
            "shapes, or none for low frequencies only. Default: strokes-together, for fashion-mnist shapes.",
            rich_help_panel="Images",
        ),
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Number of directions to report.", rich_help_panel="Images")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="Policy of a table whose file is given as DATA.")] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Use only this many records, from the start of the file.", rich_help_panel="Images"),
    ] = None,
    classes: Annotated[
        int,
        typer.Option(
            help="Number of classes of a .npz file. It is declared, never counted.", rich_help_panel="Images"
        ),
    ] = 10,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Ledger to charge. Default: the policy's, or for images a new one beside the noised data."
        ),
    ] = None,
    leave_out: LeaveOut = None,
    test_seed: Seed = None,
    json: show.Json = False,
) -> None:
    """Noise every record by itself, once, and write the noised data set with its certificate.

    Example: sfumato local release mnist --epsilon 8 --out out/noised.npz
    """
    from sfumato.datasets.drawings import prior_for

    check(context, RULES)
    started = time.perf_counter()
    out.parent.mkdir(parents=True, exist_ok=True)
    if data.endswith(".toml") and policy is not None:
        raise InvalidInput(f"expected one policy, got {data} and --policy {policy}; leave one out")
    if data.endswith(".toml"):
        answer = _release_table(None, Path(data), epsilon, out, ledger, test_seed, leave_out or ())
    elif policy is not None:
        answer = _release_table(data, policy, epsilon, out, ledger, test_seed, leave_out or ())
    else:
        if leave_out:
            raise InvalidInput("expected no --leave-out with images, got one; it names a column of a policy")
        if epsilon is None:
            raise InvalidInput("expected --epsilon, got none; say how much each person may lose")
        book = out.with_suffix(".ledger.db") if ledger is None else ledger
        rows = _images(data, size, classes)
        kind = {"none": "low-frequencies", None: prior_for(data)}.get(prior, prior)
        answer = _release_images(rows, str(kind), dimension, epsilon, delta, randomiser, out, book, test_seed)
    _show({**answer, "seconds": time.perf_counter() - started}, json=json)


@app.command()
def learn(
    data: Annotated[Path, typer.Argument(help="A noised data set.")],
    classifier: Annotated[
        str | None,
        typer.Option(help="linear, quadratic or nearest-mean. Default: the best one for these reports."),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Public test images. Default: the test images of the same data set.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, for `sfumato predict`.")] = None,
    json: show.Json = False,
) -> None:
    """Learn a classifier from a noised data set, and measure it on public test images.

    Example: sfumato local learn out/noised.npz --out out/learned
    """
    from sfumato.local import certificate_beside, read_noised, write_learnt
    from sfumato.local import learn as learn_from
    from sfumato.storage import RunFolder

    started = time.perf_counter()
    if out is not None:
        RunFolder(out).refuse_finished()
    noised, certificate = read_noised(data), None if out is None else certificate_beside(data)
    found = learn_from(noised, classifier=classifier)
    rows = _test_images(test or noised.name, noised.plan.classes)
    right = found.predict(rows.inputs[:, 0]) == rows.targets
    answer: dict[str, Any] = {
        "test_accuracy": float(right.mean()),
        "epsilon": noised.plan.price,
        "delta": noised.plan.delta,
        "people": len(noised),
        "trust": found.trust,
        "classifier": found.name,
        "seconds": time.perf_counter() - started,
    }
    if out is not None and certificate is not None:
        write_learnt(found, noised, certificate, out=out, test_accuracy=answer["test_accuracy"])
        answer["out"] = str(out)
    _show(answer, json=json)


@app.command()
def show_table(
    data: Annotated[Path, typer.Argument(help="A noised table written by `local release`.")],
    policy: Annotated[Path, typer.Option(help="Policy that the table was noised with.")],
    epsilon: Annotated[
        float | None, typer.Option(help="ε that it was noised with, if not the policy's.")
    ] = None,
    leave_out: LeaveOut = None,
    json: show.Json = False,
) -> None:
    """Estimate means and shares from a noised table, with 95% intervals.

    Example: sfumato local show-table out/people.npz --policy people.toml
    """
    import numpy as np

    from sfumato.local import read_table_plan

    plan = read_table_plan(policy, epsilon=epsilon, leave_out=leave_out or ())
    with np.load(data, allow_pickle=False) as archive:
        reports = {column.name: archive[column.name] for column in plan.columns}
    found = {}
    for column, estimate in zip(plan.columns, plan.estimates(reports).values(), strict=True):
        low, high = estimate.interval(0.95)
        names = ["mean"] if column.categories is None else [str(value) for value in column.categories]
        found[column.name] = {
            name: [float(value), float(least), float(most)]
            for name, value, least, most in zip(names, estimate.values, low, high, strict=True)
        }
    if json:
        show.emit_json({"columns": found})
        return
    for name, parts in found.items():
        for part, (value, least, most) in parts.items():
            show.console.print(f"{name} {part}: {value:.4g} [{least:.4g}, {most:.4g}]", markup=False)


def _release_images(
    rows: Dataset,
    kind: str,
    dimension: int | None,
    epsilon: float,
    delta: float,
    randomiser: str,
    out: Path,
    book: Path,
    test_seed: int | None,
) -> dict[str, Any]:
    from sfumato.local import (
        DIMENSIONS,
        KINDS,
        PRIORS,
        ReportPlan,
        build_view,
        certificate_place,
        open_ledger,
        refuse_beyond_budget,
        refuse_to_overwrite,
        release_images,
    )

    refuse_to_overwrite(out)
    if kind not in KINDS:
        raise InvalidInput(f"expected --prior none or one of {', '.join(PRIORS)}, got {kind!r}")
    plan = ReportPlan(
        classes=rows.classes or 2,
        dimension=DIMENSIONS[kind] if dimension is None else dimension,
        epsilon=epsilon,
        delta=delta if randomiser == "gaussian" else 0.0,
        randomiser=randomiser,
    )
    sampler = _sampler(test_seed)
    with open_ledger(book, epsilon=epsilon, delta=plan.delta) as ledger, show.errors.status("noising"):
        refuse_beyond_budget(ledger, plan.event())  # before the view is built, which takes seconds
        _, certificate = release_images(
            rows.inputs[:, 0],
            rows.targets,
            plan=plan,
            view=build_view(kind, dimension),
            name=rows.name,
            sampler=sampler,
            ledger=ledger,
            out=out,
        )
        left = ledger.epsilon_left
    return {
        "out": str(out),
        "certificate": str(certificate_place(out)),
        "epsilon": certificate.prices.pld,
        "delta": plan.delta,
        "relation": str(certificate.relation),
        "people": len(rows),
        "dimension": plan.dimension,
        "shuffled": certificate.plan["shuffled"]["epsilon"],
        "epsilon_left": left,
    }


def _release_table(
    data: str | None,
    policy: Path,
    epsilon: float | None,
    out: Path,
    ledger: Path | None,
    test_seed: int | None,
    leave_out: Sequence[str],
) -> dict[str, Any]:
    from sfumato.local import (
        certificate_place,
        open_policy_ledger,
        read_people,
        refuse_beyond_budget,
        refuse_to_overwrite,
        release_table,
        table_plan,
    )
    from sfumato.policy import load_policy

    refuse_to_overwrite(out)
    declared = load_policy(policy, source=data)
    plan = table_plan(declared, epsilon=epsilon, leave_out=leave_out)
    with open_policy_ledger(declared, policy, ledger) as book:
        refuse_beyond_budget(book, plan.event())  # before a large table is read
        certificate = release_table(
            read_people(declared.source, plan),
            plan=plan,
            name=declared.table,
            sampler=_sampler(test_seed),
            ledger=book,
            out=out,
        )
        left = book.epsilon_left
    return {
        "out": str(out),
        "certificate": str(certificate_place(out)),
        "epsilon": certificate.prices.pld,
        "delta": 0.0,
        "columns": {column.name: column.epsilon for column in plan.columns},
        "left_out": list(plan.left_out),
        "epsilon_left": left,
    }


def _images(data: str, size: int | None, classes: int) -> Dataset:
    from sfumato import datasets

    if data.endswith(".npz"):
        rows = datasets_from_npz(Path(data), classes)
    elif data.endswith((".csv", ".csv.gz", ".parquet", ".pq")):
        raise InvalidInput(
            "expected the table's policy (people.toml) in place of the table; it declares what may be reported"
        )
    else:
        rows = datasets.load(data, "train", side=28 if data == "digits" else None)
    return rows if size is None else rows.excerpt(size)


def datasets_from_npz(place: Path, classes: int) -> Dataset:
    """Images and labels under the names `images` and `labels`; grey levels of whole numbers are of 255."""
    import numpy as np

    from sfumato.datasets import Dataset
    from sfumato.errors import DataUnavailable

    if not place.is_file():
        raise DataUnavailable(f"there is no file {place}; give the path of a .npz with images and labels")
    with np.load(place, allow_pickle=False) as archive:
        if not {"images", "labels"} <= set(archive.files):
            raise InvalidInput(f"expected {place} to hold the arrays images and labels, got {archive.files}")
        images, labels = archive["images"], archive["labels"]
    scaled = images / np.float32(255.0) if images.dtype.kind in "iu" else images
    pictures = np.ascontiguousarray(scaled.reshape(len(images), 1, *images.shape[-2:]), dtype=np.float32)
    return Dataset(
        inputs=pictures,
        targets=labels.astype(np.int64),
        name=place.stem,
        visibility="private",
        unit="person",
        classes=classes,
        public_size=len(images),
    )


def _test_images(name: str, classes: int) -> Dataset:
    from sfumato import datasets

    if name.endswith(".npz"):
        return datasets_from_npz(Path(name), classes)
    return datasets.load(name, "test", side=28 if name == "digits" else None)


def _sampler(test_seed: int | None) -> SecretStream:
    from sfumato.randomness import SecretStream

    return SecretStream(test_seed=test_seed)


def _show(answer: dict[str, Any], *, json: bool) -> None:
    if json:
        show.emit_json(answer)
        return
    show.facts(
        [
            (key.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
            for key, value in answer.items()
        ]
    )
