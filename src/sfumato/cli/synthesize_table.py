"""The table of `sfumato synthesize`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli import show
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.ledger import Ledger
    from sfumato.policy import Policy
    from sfumato.synthesis import Places, Released, Request

Found = dict[str, Any]
"""The result of an attack."""

CANARIES = 200  # a few among the people, so that the run is like the released one


def synthesize_table(
    policy: Path,
    *,
    rows: int,
    epsilon: float,
    delta: float | None,
    table: str | None,
    target: str | None,
    columns: str | None,
    leave_out: Sequence[str],
    workload: str | None,
    out: Path | None,
    engine: str | None,
    master: str,
    attack: bool,
    spend_under: tuple[str | None, str | None],
    dry_run: bool,
    test_seed: int | None,
    json: bool,
) -> None:
    """Plan, charge, measure, draw, and print the cost; or print only the price."""
    from sfumato.query.answer import open_ledger
    from sfumato.synthesis import Places, Request
    from sfumato.synthesis.inference import load_mbi

    started = time.perf_counter()
    load_mbi()  # a missing package is reported before anything is spent
    drawn = None if columns is None else _names(columns)
    wanted = [*(drawn or []), *([] if target is None else [target])]
    request = Request.of(
        _rules(policy, table, wanted),
        rows=rows,
        epsilon=epsilon,
        delta=delta,
        target=target,
        columns=drawn,
        leave_out=leave_out,
        marginals=None if workload is None else [_names(part) for part in workload.split(";")],
    )
    places = None if out is None else Places(out)
    _tell(request)
    allocation, purpose = spend_under
    with open_ledger(request.policy, policy) as book:
        book.spend_under(allocation, purpose=purpose)
        if dry_run or places is None:
            _show_price(request, book, json=json)
            return
        released = _released(request, book, places, engine, master, test_seed)
        left = book.epsilon_left
    attacked = _attack(request, released.epsilon, places, engine, master) if attack else None
    answer = {
        **_answer(request, released, places),
        "epsilon_left": left,
        "attack": str(places.attack) if attack else None,
        "seconds": time.perf_counter() - started,
    }
    _show(answer, attacked, json=json)


def _rules(policy: Path, table: str | None, columns: list[str]) -> Policy:
    from sfumato.policy import load_policy

    return load_policy(policy).one_table(table, having=columns)


def _tell(request: Request) -> None:
    rules = request.policy
    if rules.tables:
        others = ", ".join(name for name in rules.tables if name != rules.table)
        show.errors.print(f"Of the policy's tables, {rules.table} is drawn; not {others}.", markup=False)
    if request.forecast is not None:
        show.errors.print(request.forecast, markup=False)


def _answer(request: Request, released: Released, places: Places) -> dict[str, Any]:
    return {
        "out": str(places.table),
        "table": request.policy.table,
        "epsilon": released.epsilon,
        "delta": request.delta,
        "rows": request.rows,
        "columns": [column.name for column in request.drawn],
        "left_out": list(request.left_out),
        "not_measured": released.report["not_measured"],
        "notes": list(released.notes),
        "certificate": str(places.certificate),
        "model": str(places.model),
        "fidelity": str(places.page),
        "distances": str(places.distances),
    }


def _show_price(request: Request, book: Ledger, *, json: bool) -> None:
    plan, budget = request.plan, request.policy.budget
    book.check(plan.event(), relation=budget.relation, unit=budget.unit)
    answer: dict[str, Any] = {
        "dry_run": True,
        "table": request.policy.table,
        "epsilon": plan.epsilon(request.delta),
        "delta": request.delta,
        "columns": [column.name for column in request.drawn],
        "left_out": list(request.left_out),
        "deviation_of_counts": plan.single_sigma,
        "deviation_of_joint_counts": plan.joint_sigma if plan.measured else None,
        "epsilon_spent": book.epsilon_spent,
        "epsilon_left": book.epsilon_left,
    }
    if json:
        show.emit_json(answer)
        return
    joint = answer["deviation_of_joint_counts"]
    show.facts(
        [
            ("table", request.policy.table),
            ("columns", ", ".join(answer["columns"])),
            ("epsilon, delta", f"{answer['epsilon']:.4g}, {request.delta:g}"),
            ("noise on counts", f"± {plan.single_sigma:,.3g} (standard deviation), of a single column"),
            *([] if joint is None else [("", f"± {joint:,.3g}, of columns together")]),
        ]
    )
    if request.left_out:
        names = ", ".join(request.left_out)
        show.console.print(f"left out on purpose: {names}", style="dim", markup=False)
    show.console.print(f"Nothing was spent; ε left {book.epsilon_left:.4g}.", style="dim")


def _released(
    request: Request, book: Ledger, places: Places, engine: str | None, master: str, test_seed: int | None
) -> Released:
    from sfumato.marginals import engine_marginals
    from sfumato.randomness import SecretStream
    from sfumato.synthesis import release

    with show.stages(request.stages) as next_stage:
        marginals = engine_marginals(request, request.policy, engine=engine, master=master)
        return release(
            request,
            marginals,
            ledger=book,
            out=places.table,
            sampler=SecretStream(test_seed=test_seed),
            progress=next_stage,
        )


def _attack(request: Request, epsilon: float, places: Places, engine: str | None, master: str) -> Found:
    from sfumato.audit import one_run
    from sfumato.marginals import engine_marginals
    from sfumato.randomness import SecretStream
    from sfumato.synthesis import PaidTable, Synthesizer, WithCanaries, draw_canaries, linked, membership_scores

    sampler = SecretStream()
    included = one_run.toss(CANARIES, sampler)
    canaries = draw_canaries(request.columns, CANARIES, sampler)
    counts = engine_marginals(request, request.policy, engine=engine, master=master)
    table = WithCanaries(counts, canaries, included)
    with show.stages(request.stages) as next_stage:
        paid = PaidTable(request.plan, table, sampler)
        found = Synthesizer(
            paid,
            request.columns,
            request.candidates,
            fixed=request.fixed,
            progress=lambda words: next_stage(f"attack: {words}"),
        ).run()
    made = one_run.planned_guesses(CANARIES)
    guesses = one_run.Guesses.of_scores(membership_scores(found.model, canaries), included, guesses=made)
    bound = one_run.epsilon_bound(guesses, delta=request.delta, alpha=0.05)
    secret = request.plan.target or max(request.columns, key=lambda column: column.size).name
    right = linked(found.model, canaries, secret)
    by_chance = float(right[~included].mean()) if (~included).any() else 0.0
    outcome: Found = {
        "claimed_epsilon": epsilon,
        "lower_bound": bound,
        "confidence": 0.95,
        "canaries": CANARIES,
        "guesses": guesses.made,
        "right": guesses.right,
        "linkage": {
            "column": secret,
            "right_if_in": float(right[included].mean()) if included.any() else 0.0,
            "right_if_not_in": by_chance,
            "allowed_if_in": min(1.0, math.exp(min(epsilon, 700.0)) * by_chance + request.delta),
            "means": "share of canaries whose value was guessed by someone who knows the rest of the row",
        },
        "means": "of a run like this one, never released; canaries are invented rows, in by a fair coin",
    }
    places.write_private(places.attack, outcome)
    return outcome


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidInput('expected names separated by commas, such as "age,income", got none')
    return names


def _show(answer: dict[str, Any], attacked: Found | None, *, json: bool) -> None:
    """Print the answer; the result of an attack goes to the terminal only, not into the JSON."""
    if json:
        show.emit_json(answer)
        return
    show.facts(
        [
            ("written", answer["out"]),
            *((name, answer[name]) for name in ("certificate", "model", "fidelity")),
            ("keep to yourself", answer["distances"]),
            *([] if answer["attack"] is None else [("", answer["attack"])]),
            ("table", answer["table"]),
            ("rows", f"{answer['rows']:,}"),
            ("epsilon, delta", f"{answer['epsilon']:.4g}, {answer['delta']:g}"),
            ("epsilon left", f"{answer['epsilon_left']:.4g}"),
            ("seconds", f"{answer['seconds']:.1f}"),
        ]
    )
    if missed := len(answer["not_measured"]):
        text = f"{missed} combinations of columns were not measured but inferred; the fidelity page lists them"
        show.console.print(text, style="dim", markup=False)
    for note in answer["notes"]:
        show.console.print(note, style="dim", markup=False)
    if attacked is not None:
        _show_attack(attacked)


def _show_attack(found: Found) -> None:
    linkage = found["linkage"]
    show.facts(
        [
            (
                "who was in",
                f"{found['right']} of {found['guesses']} guesses right, {found['canaries']} canaries",
            ),
            (
                "epsilon it proves",
                f"{found['lower_bound']:.3g} (95%), of {found['claimed_epsilon']:.3g} claimed",
            ),
            (
                f"{linkage['column']} guessed right",
                f"{linkage['right_if_in']:.0%} of who was in, {linkage['right_if_not_in']:.0%} of who was not",
            ),
        ],
        title="Attack on a second run with invented people (not private: for the holder only)",
    )
