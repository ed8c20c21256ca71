"""`sfumato train POLICY --target COLUMN`: a model of a table from its policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.expected import room, show_room
from sfumato.cli.options import Rule, check
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.learn.table import TableRun, TableTraining
    from sfumato.ledger import Ledger
    from sfumato.policy import Policy

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
    "hold_out",
    "hold_out_epsilon",
    "leave_out",
}
_RULES = (
    Rule(option="target", needs=("policy",), because="it is a column of a policy's table"),
    Rule(option="table", needs=("policy",), because="it is a table of a policy"),
    Rule(option="leave_out", needs=("policy",), because="it is a column of a policy's table"),
    Rule(option="hold_out_epsilon", needs=("hold_out",), because="it pays for what is kept out"),
)
_MEASURED = ("test_accuracy", "test_rmse")  # of classes, of a number
_PUBLIC_ROWS = "give public rows as --test-data"
_KEPT_OUT = "or measure on private ones at a price with --hold-out"
_ELSEWHERE = {
    "finish": "a table is learned in seconds to minutes and keeps no checkpoints: begin anew",
    "ledger": "the policy names its ledger",
    "public_size": "the policy declares it",
    "unit": "the policy declares it",
}


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
            f"expected no --{other[0].replace('_', '-')} with a policy, got one; "
            f"{_ELSEWHERE.get(other[0], 'that is for images')}"
        )
    ready, answer = _run(given)
    if given.get("json"):
        show.emit_json(answer)
    else:
        _show(ready, answer)
    return True


def _show(ready: TableTraining, answer: dict[str, Any]) -> None:
    apart = ("dry_run", "epsilon_left", "epsilon_left_after") if "dry_run" in answer else ()
    told = {name: value for name, value in answer.items() if value != [] and name not in apart}
    remedy = f"{_PUBLIC_ROWS}, {_KEPT_OUT}" if ready.can_hold_out else _PUBLIC_ROWS
    show.answer(told, remedies=dict.fromkeys(_MEASURED, remedy))
    if apart:
        show_room(answer)


def _run(given: dict[str, Any]) -> tuple[TableTraining, dict[str, Any]]:
    from sfumato.learn import HoldOut
    from sfumato.learn.table import TableTraining
    from sfumato.policy import load_policy

    policy = load_policy(given["policy"]).one_table(given.get("table"), having=[given["target"]])
    ready = TableTraining.prepare(
        policy,
        target=given["target"],
        epsilon=given["epsilon"],
        delta=given.get("delta"),
        model=given.get("model", DEFAULT),
        leave_out=given.get("leave_out", ()),
        hold_out=HoldOut(share=given["hold_out"], **_paid_by(given)) if "hold_out" in given else None,
    )
    with _open_ledger(policy, given) as book:
        if given.get("dry_run"):
            left = room(book, ready.events, relation=policy.budget.relation, unit=policy.budget.unit)
            return ready, {"dry_run": True, "table": policy.table, **_priced(ready), **left}
        out = given.get("out") or _free_folder(policy.table, ready.target.name)
        run = _trained(ready, book, out, given.get("test_data"))
        spent = {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}
        return ready, {**_answer(ready, run), **spent, "table": policy.table, "out": str(out)}


def _paid_by(given: dict[str, Any]) -> dict[str, float]:
    return {"epsilon": given["hold_out_epsilon"]} if "hold_out_epsilon" in given else {}


def _open_ledger(policy: Policy, given: dict[str, Any]) -> Ledger:
    """The policy's own and no other: a second one would have a budget of its own."""
    from sfumato.query.answer import open_ledger

    book = open_ledger(policy, Path(given["policy"]))
    return book.spend_under(given.get("allocation"), purpose=given.get("purpose"))


def _trained(ready: TableTraining, book: Ledger, out: Path, test: str | None) -> TableRun:
    with show.progress() as bar:
        task = bar.add_task("training", total=ready.releases, note="")
        return ready.train(ledger=book, out=out, test=test, watch=lambda done: bar.update(task, completed=done))


def _priced(ready: TableTraining) -> dict[str, Any]:
    both = {} if ready.hold_out is None else {"epsilon_with_hold_out": ready.epsilon_with_hold_out}
    return {
        "epsilon": ready.epsilon,
        **both,
        "delta": ready.delta,
        "left_out": list(ready.encoding.left_out),
    }


def _answer(ready: TableTraining, run: TableRun) -> dict[str, Any]:
    held = run.held_out
    name = _MEASURED[0] if ready.classes is not None else _MEASURED[1]
    measured: dict[str, Any] = run.measured or ({name: None} if held is None else {})
    if held is not None:
        measured |= {
            "held_out_accuracy": held.accuracy,
            "held_out_interval": (held.low, held.high),
            "held_out_epsilon": held.epsilon,
            "epsilon_with_hold_out": ready.epsilon_with_hold_out,
        }
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
