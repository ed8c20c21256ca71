"""`sfumato data`: fetch a data set and verify it; check a file of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli import show
from sfumato.cli.options import by_default
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.query.check import FileCheck

app = typer.Typer(
    cls=by_default("fetch"),
    help="Fetch a data set, or check a file. `sfumato data NAME` is short for `sfumato data fetch NAME`.",
    no_args_is_help=True,
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="data")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10, digits or adult.")],
    out: Annotated[
        Path | None, typer.Option(help="For adult: folder for train.csv, test.csv and policy.toml.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Fetch a data set, check its digests, and say where it is.

    Example: sfumato data mnist
    """
    from sfumato.datasets import DATASETS, fetch, load

    if name == "adult":
        _write_adult(out or Path(name), json=json)
        return
    if out is not None:
        raise InvalidInput(f"expected --out with adult only, got it with {name}; it stays in the cache")
    files = fetch(name)
    spec = DATASETS[name]
    for split in spec.public_size:
        load(name, split)  # type: ignore[arg-type]
    answer = {
        "name": name,
        "files": [str(found.path) for found in files],
        "sizes": dict(spec.public_size),
        "classes": spec.classes,
    }
    if json:
        show.emit_json(answer)
        return
    sizes = ", ".join(f"{size} {split}" for split, size in spec.public_size.items())
    rows = [("data set", name), ("rows", sizes), ("classes", str(spec.classes))]
    rows += [("file", str(found.path)) for found in files] or [("file", "inside scikit-learn")]
    show.facts(rows, title="Digests hold.")


def _write_adult(folder: Path, *, json: bool) -> None:
    from sfumato.datasets.adult import CATEGORIES, TARGET, write_adult

    files = write_adult(folder)
    if json:
        names = [str(file) for file in files]
        show.emit_json({"name": "adult", "files": names, "classes": CATEGORIES[TARGET]})
        return
    show.facts([("data set", "adult"), *(("file", str(file)) for file in files)], title="The digest holds.")


@app.command()
def check(
    file: Annotated[
        str, typer.Argument(help="A text, Parquet or DuckDB file, or a pattern such as parts/*.parquet.")
    ],
    policy: Annotated[
        Path | None, typer.Option(help="Its policy; default: the .toml of the same name beside it, if any.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Table of a policy of several. Default: the one whose source is the file."),
    ] = None,
    delimiter: Annotated[str, typer.Option(help="Separator of values, if there is no policy.")] = ",",
    json: show.Json = False,
) -> None:
    """Report the faults of a file with their lines, and make the clean copy that queries read.

    The figures are exact and not private: only for the data holder.

    Example: sfumato data check people.csv --policy people.toml
    """
    from sfumato.query import load_policy
    from sfumato.query.check import check_file, policy_of_file

    place = policy or _policy_beside(file)
    if place is None and table is not None:
        raise InvalidInput("expected --policy with --table, got none; the policy says what is in its tables")
    rules = None if place is None else policy_of_file(load_policy(place), file, table)
    with show.errors.status("reading"):
        found = check_file(file, rules, delimiter=delimiter)
    if json:
        show.emit_json(found.to_json())
    else:
        _show_check(found)


def _policy_beside(file: str) -> Path | None:
    place = Path(file).parent / f"{Path(file).name.split('.')[0]}.toml"
    return place if place.is_file() else None


def _show_check(found: FileCheck) -> None:
    tally = found.tally
    rows = [] if found.table is None else [("table of the policy", found.table)]
    rows += [("rows", f"{tally.rows:,}"), ("lines left out", f"{tally.dropped:,}")]
    noun = "line" if found.text else "row"
    for words, count in tally.faults.items():
        places = tally.places.get(words, [])
        more = ", …" if count > len(places) else ""
        rows.append((words, f"{count:,}" + (f": {noun} {', '.join(map(str, places))}{more}" if places else "")))
    rows += [("queries read", str(place)) for place in found.copies]
    show.facts(rows, title="What is in the file (exact: not private, for the holder only)")
    if not tally.faults:
        show.console.print("Nothing is wrong.")
    if not found.copies:
        show.console.print("Give its policy with --policy to have its values checked and a clean copy made.")
