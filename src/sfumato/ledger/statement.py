"""Statements of a ledger: each charge with its ε, the sums and a bar, as a table or as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sfumato.accounting import Budget, DpEvent, compose, event_to_json, repeat
from sfumato.ledger.charge import Charge
from sfumato.ledger.ledger import Ledger
from sfumato.ledger.rule import Rule, counted_event, exact_epsilon, releases_of, same_releases
from sfumato.ledger.state import Balance, State

FIXED = "if all charges had been fixed in advance"
SURCHARGE = (
    "A further charge may be chosen after seeing answers, so from then on all of them are counted by the "
    "privacy filter. It may ask for a surcharge, or find that charges cost less together than one by one."
)
EMPTY = "Nothing was charged yet."
TRAINING = (
    "A training fits up to about the ε of a Gaussian release, or to less if it takes few steps; "
    "sfumato train --dry-run --ledger says whether one does."
)
UNCLAIMED, OF_A_SHARE = "(unclaimed)", ("spent", "left", "surcharge of the privacy filter")
_SUMS = 1e-4  # relative: the precision of four digits
_KINDS = 200  # of releases, beyond which composing them exactly takes too long for a statement


def as_json(ledger: Ledger) -> dict[str, Any]:
    """Return the statement as one JSON object.

    `private`, of a charge and of all of them, says that the noise was not seeded. A ledger holds paid releases;
    data that a release used without a price is among the caveats of its certificate.
    """
    charges, state, head = ledger.snapshot()
    broken, balance, known = ledger.exceeded, ledger.balance_of(state), only_plan(charges, state)
    return {
        "ledger": ledger.name,
        "dataset": ledger.dataset,
        "epsilon": ledger.budget.epsilon,
        "delta": ledger.budget.delta,
        "unit": ledger.budget.unit,
        "people": ledger.people,
        "relation": str(ledger.budget.relation),
        "epsilon_spent": balance.spent,
        "epsilon_left": balance.left,
        "epsilon_set_aside": balance.set_aside,
        "epsilon_surcharge": None if balance.broken else balance.surcharge,
        "balance": balance.in_words(),
        "epsilon_left_to_gaussian": state.left_to_gaussian() if broken is None else 0.0,
        "epsilon_if_fixed_in_advance": epsilon_if_fixed(state, charges) if broken is None else None,
        "private": all(charge.private for charge in charges),
        "moved_to": ledger.moved_to,
        "exceeded_by": None if broken is None else broken.purpose,
        "allocations": {name: _share(state, name) for name in state.shares},
        "plans": {name: {"epsilon_left": state.left(name)} for name in state.plans},
        "charges": [_line(charge, state, known) for charge in charges],
        "head": head.to_json(),
    }


def render(ledger: Ledger, *, last: int = 40) -> RenderableType:
    """Return a table of the newest charges, the shares, the sums and a bar, for a rich console."""
    charges, state, _ = ledger.snapshot()
    parts: list[RenderableType] = [Text(_title(ledger), "italic")]
    parts.append(_charges_table(state, charges, last) if charges else Text(EMPTY))
    if state.shares:
        parts.append(_shares_table(state))
    parts += [_bar(ledger, state), *_notes(ledger, state, charges)]
    return Group(*parts)


def epsilon_if_fixed(state: State, charges: list[Charge]) -> float | None:
    """Compute the exact ε of all charges together, had none been chosen after seeing answers of another.

    It is None where a run was stopped early: its end was not fixed in advance.
    """
    paid = [charge for charge in charges if not charge.drawn]
    if any(charge.stopped_early for charge in paid):
        return None
    if only_plan(paid, state) is not None:
        return state.whole.exact
    counts = Counter(id(charge.counted) for charge in paid)
    alike = {id(charge.counted): charge.counted for charge in paid}
    plan = compose(*(repeat(event, counts[identity]) for identity, event in alike.items()))
    return exact_epsilon(plan, state.budget) if len(releases_of(plan)) <= _KINDS else None


def whole_plan(charge: Charge, budget: Budget) -> DpEvent:
    """Return all that was reserved for a charge, as the budget counts it; it bounds every part."""
    if charge.planned is None:
        return charge.counted
    return counted_event(charge.planned, budget, relation=charge.relation, unit=budget.unit)


def epsilon_alone(charge: Charge, rule: Rule, exact: float | None = None) -> float | None:
    """Compute ε of one charge, were it the only one of the ledger; None where no finite one is known.

    The stop of a run may depend on answers, and then the exact price of the shorter plan does not hold. That of
    the whole plan does, and the filter's of the part that ran. The ledger counts by the smaller of these two,
    and so does this function: of a ledger with one charge it is the ε spent. `exact` is the price of the whole
    plan where it is known; pricing a training takes seconds.
    """
    whole = whole_plan(charge, rule.budget)
    if exact is None:
        exact = exact_epsilon(whole, rule.budget)
    if not charge.stopped_early:
        return exact
    spent = rule.spent_on_stopped(charge.counted, whole, exact)
    return spent if math.isfinite(spent) else None


def only_plan(charges: Iterable[Charge], state: State) -> DpEvent | None:
    """Return the only plan that was charged, in full; None where charges may have been chosen on answers."""
    if state.whole.exact is None:
        return None
    paid = [charge for charge in charges if not charge.drawn and not state.of_whole.price(charge.counted).empty]
    return whole_plan(paid[0], state.budget) if len(paid) == 1 else None


def _cost(charge: Charge, state: State, known: DpEvent | None) -> float | None:
    """Return ε of a charge alone; that of a ledger's only plan stands in its sums."""
    only = known is not None and same_releases(whole_plan(charge, state.budget), known)
    return epsilon_alone(charge, state.of_whole, state.whole.exact if only else None)


def _line(charge: Charge, state: State, known: DpEvent | None) -> dict[str, Any]:
    return {
        "entry": charge.head.sequence,
        "time": charge.time,
        "purpose": charge.purpose,
        "allocation": charge.allocation,
        "epsilon": _cost(charge, state, known),
        "status": _status(charge),
        "drawn_from_plan": charge.drawn,
        "private": charge.private,
        "relation": str(charge.relation),
        "event": event_to_json(charge.event),
    }


def _status(charge: Charge) -> str:
    if charge.stopped_early:
        return "stopped early"
    return "settled" if charge.settled else "reserved"


def _share(state: State, name: str) -> dict[str, float]:
    found = Balance.of(state, name)
    parts = {"epsilon_spent": found.spent, "epsilon_left": found.left, "epsilon_surcharge": found.surcharge}
    return {"epsilon": found.total, **parts}


def _title(ledger: Ledger) -> str:
    budget = ledger.budget
    title = f"Privacy ledger: ε = {budget.epsilon:g}, δ = {budget.delta:g} per {budget.unit}, {budget.relation}"
    return title if ledger.dataset is None else f"{title}, of {ledger.dataset}"


def _charges_table(state: State, charges: list[Charge], last: int) -> Table:
    """Return the newest charges, with a column of the shares that paid where one did."""
    listed = charges[-last:] if last else []
    named = any(charge.allocation is not None for charge in listed)
    table = Table(caption_justify="left")
    for heading in ("#", "when (UTC)", "what", *(["paid from"] if named else [])):
        table.add_column(heading, overflow="fold")
    table.add_column("ε", justify="right", no_wrap=True)
    known = only_plan(charges, state)
    for charge in listed:
        table.add_row(*_cells(charge, _cost(charge, state, known), named=named))
    if len(charges) > last:
        table.caption = f"{len(charges) - last} earlier charges are not shown"
    return table


def _cells(charge: Charge, cost: float | None, *, named: bool) -> list[RenderableType]:
    purpose = Text(charge.purpose)
    if _status(charge) != "settled":
        purpose.append(f"  {_status(charge)}", style="yellow")
    if not charge.private:
        purpose.append("  not private (seeded)", style="bold red")
    when = charge.time[:16].replace("T", " ")
    figure = "paid" if charge.drawn else _figure(cost)
    payer = [Text(charge.allocation or "")] if named else []
    return [str(charge.head.sequence), when, purpose, *payer, figure]


def _shares_table(state: State) -> Table:
    table = Table("share of", "ε", "spent", "left", "surcharge", title="Shares", title_justify="left")
    for name, found in balances(state).items():
        parts = dict(found.parts())
        table.add_row(Text(name), found.figure(found.total), *(parts.get(part, "0") for part in OF_A_SHARE))
    return table


def balances(state: State) -> dict[str, Balance]:
    """Return the balance of each share, and of the part that no share claims."""
    return {name: Balance.of(state, name) for name in state.shares} | {UNCLAIMED: Balance.unclaimed(state)}


def _bar(ledger: Ledger, state: State) -> Table:
    grid = Table.grid(padding=(0, 1))
    spent = ledger.epsilon_spent
    bar = ProgressBar(total=ledger.budget.epsilon, completed=min(spent, ledger.budget.epsilon), width=40)
    grid.add_row(bar, f"{spent / ledger.budget.epsilon:.0%} spent")
    return grid


def _notes(ledger: Ledger, state: State, charges: list[Charge]) -> list[Text]:
    broken = ledger.exceeded
    if broken is not None:
        owed = f"EXCEEDED by {broken.purpose}, released outside: ε = {_figure(broken.owed)} is owed in all"
        return [Text(f"{owed}, of {ledger.budget.epsilon:g}; the ledger is closed", "bold red")]
    balance = ledger.balance_of(state)
    lines = [Text(balance.in_words(), "bold")]
    if "surcharge of the privacy filter" in dict(balance.parts()):
        lines.append(Text(SURCHARGE, "dim"))
    other = _left_to_gaussian(state)
    if other is not None:
        lines.append(Text(other))
    fixed = epsilon_if_fixed(state, charges)
    if fixed is not None and charges:
        lines.append(Text(f"{_figure(fixed)} {FIXED}"))
    if ledger.budget.delta and other is not None:
        lines.append(Text(TRAINING, "dim"))
    if ledger.moved_to is not None:
        lines.append(Text(f"MOVED to {ledger.moved_to}: closed here, and charged there", "bold red"))
    if any(not charge.private for charge in charges):
        lines.append(Text("NOT PRIVATE: a charge was made with seeded noise", "bold red"))
    return lines


def _left_to_gaussian(state: State) -> str | None:
    """Describe the ε of one further Gaussian release where it differs from that of pure ε."""
    pure, gaussian = state.left(), state.left_to_gaussian()
    if math.isclose(pure, gaussian, rel_tol=_SUMS):
        return None
    if not state.budget.delta:
        return "Left is for a release of pure ε; none for training (δ is 0)."
    return f"Left is for a release of pure ε; a Gaussian one may cost {_figure(gaussian)}."


def _figure(value: float | None) -> str:
    """
    >>> _figure(0.16004), _figure(0.00001234), _figure(None)
    ('0.1600', '1.23e-05', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.4f}" if value >= 1e-3 or value == 0 else f"{value:.2e}"
