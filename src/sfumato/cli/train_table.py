"""`sfumato train POLICY --target COLUMN`: a model of a table from its policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import Rule, check
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.ledger import Ledger
    from sfumato.policy import Policy
    from sfumato.recipes.table import TableRun, TableTraining

PolicyFile = Annotated[
    Path | None,
    typer.Argument(help="Policy of a table, to learn one of its columns. For images give --data instead."),
]
TargetColumn = Annotated[str | None, typer.Option(help="Column to learn, of a policy's table.")]

DEFAULT = "boosted"
_TAKEN = {"policy", "target", "model", "epsilon", "delta", "test_data", "out", "dry_run", "json"} | {
    "allocation",
    "purpose",
    "table",
}
_RULES = (
    Rule(option="target", needs=("policy",), because="it is a column of a policy's table"),
    Rule(option="table", needs=("policy",), because="it is a table of a policy"),
)


def train_from_policy(context: typer.Context) -> bool:
    """Whether the words name a policy; if so, the run is done."""
    given = {name: value for name, value in context.params.items() if _was_given(context, name)}
    if not {"policy", "data", "target"} & given.keys():
        raise InvalidInput(
            "expected a policy and --target, or --data, got neither; as in sfumato train people.toml "
            "--target ill, or sfumato train --data mnist"
        )
    check(context, _RULES)
    if "policy" not in given:
        return False
    if missing := [name for name in ("target", "epsilon") if name not in given]:
        raise InvalidInput(
            f"expected --{missing[0]} with a policy, got none; say which column to learn, and the ε that may "
            "be spent"
        )
    if other := sorted(given.keys() - _TAKEN):
        raise InvalidInput(
            f"expected no --{other[0].replace('_', '-')} with a policy, got one; the policy says all that "
            "is needed"
        )
    answer = _run(given)
    if given.get("json"):
        show.emit_json(answer)
    else:
        told = {name: value for name, value in answer.items() if value != []}
        show.answer(told, remedies={"test_accuracy": "give public rows as --test-data"})
    return True


def _run(given: dict[str, Any]) -> dict[str, Any]:
    from sfumato.policy import load_policy
    from sfumato.recipes.table import TableTraining

    policy = load_policy(given["policy"]).one_table(given.get("table"), having=[given["target"]])
    ready = TableTraining.prepare(
        policy,
        target=given["target"],
        epsilon=given["epsilon"],
        delta=given.get("delta"),
        model=given.get("model", DEFAULT),
    )
    with _open_ledger(policy, given) as book:
        if given.get("dry_run"):
            book.check(ready.event, relation=policy.budget.relation, unit=policy.budget.unit)
            return {"table": policy.table, **_priced(ready)}
        out = given.get("out") or _free_folder(policy.table, ready.target.name)
        run = _trained(ready, book, out, given.get("test_data"))
        spent = {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}
        return {**_answer(run), **spent, "table": policy.table, "out": str(out)}


def _open_ledger(policy: Policy, given: dict[str, Any]) -> Ledger:
    """The policy's own and no other: a second one would have a budget of its own."""
    from sfumato.query.opening import open_ledger

    book = open_ledger(policy, Path(given["policy"]))
    return book.spend_under(given.get("allocation"), purpose=given.get("purpose"))


def _trained(ready: TableTraining, book: Ledger, out: Path, test: str | None) -> TableRun:
    with show.progress() as bar:
        task = bar.add_task("training", total=ready.releases, note="")
        return ready.train(ledger=book, out=out, test=test, watch=lambda done: bar.update(task, completed=done))


def _priced(ready: TableTraining) -> dict[str, Any]:
    return {"epsilon": ready.epsilon, "delta": ready.delta, "left_out": list(ready.encoding.left_out)}


def _answer(run: TableRun) -> dict[str, Any]:
    measured = run.measured or {"test_accuracy": None}
    return {
        **measured,
        "epsilon": run.epsilon,
        "delta": run.delta,
        "seconds": run.seconds,
        "left_out": list(run.left_out),
    }


def _free_folder(table: str, target: str) -> Path:
    """out/people-ill, or the next one that is free: what is paid for is kept somewhere."""
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{table}-{target}")
    places = (Path("out") / (name if number == 1 else f"{name}-{number}") for number in range(1, 1_000_000))
    return next(place for place in places if not place.exists())


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")
