"""The hazards that NIST SP 800-226 (March 2025) warns of, answered from what the system knows.

The order is that of its pyramid: the guarantee at the top, then how it is made, then what it rests on. The
wording is ours. What no software can know is asked.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sfumato.accounting.meaning import LARGEST_DELTA
from sfumato.governance.statements.statement import Statement

_PEOPLE = ("person", "patient", "user", "customer", "client")
YES, NO, ASK = "handled", "problem", "please answer"


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """One hazard and what is known of it.

    Attributes:
        layer: The part of the pyramid.
        hazard: What can go wrong.
        status: "handled", "problem" or "please answer".
        answer: What the system knows, or what it asks.
    """

    layer: str
    hazard: str
    status: str
    answer: str


def checklist(statement: Statement) -> list[Hazard]:
    """Answer each hazard from a statement.

    Args:
        statement: What is known.

    Returns:
        The hazards, from the top of the pyramid to its base.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(f"{folder}/l.db", budget=Budget(epsilon=1)) as ledger:
    ...         checklist(Statement.of(ledger))[0].status
    'handled'
    """
    return [*_guarantee(statement.data), *_making(statement.data), *_ground()]


def as_rows(hazards: list[Hazard]) -> list[dict[str, Any]]:
    """The list as JSON."""
    return [asdict(hazard) for hazard in hazards]


def _guarantee(book: Any) -> list[Hazard]:
    layer, epsilon, delta = "guarantee", book["epsilon"], book["delta"]
    broken = book["exceeded_by"] is not None
    return [
        Hazard(
            layer=layer,
            hazard="ε is so large that it protects nobody",
            status=YES if epsilon <= 10 else NO,
            answer=f"The budget is ε = {epsilon:g}." + ("" if epsilon <= 10 else " Above 10 it says little."),
        ),
        Hazard(
            layer=layer,
            hazard="δ is not far below 1 / number of people",
            status=NO if delta >= LARGEST_DELTA else ASK if delta else YES,
            answer=f"δ = {delta:g}. Is it far below 1 / number of {book['unit']}s?" if delta else "δ is 0.",
        ),
        Hazard(
            layer=layer,
            hazard="the unit of privacy is not the person",
            status=YES if book["unit"] in _PEOPLE else ASK,
            answer=f"The unit is the {book['unit']}."
            + ("" if book["unit"] in _PEOPLE else " Can one person have several?"),
        ),
        Hazard(
            layer=layer,
            hazard="neighbouring data sets are not the ones that readers think of",
            status=YES,
            answer=f"Neighbours by {book['relation']}; every certificate says so.",
        ),
        Hazard(
            layer=layer,
            hazard="losses of many releases are not added up",
            status=NO if broken else YES,
            answer="A release outside the ledger broke the budget."
            if broken
            else f"One ledger adds all up: {book['epsilon_spent']:.4g} of {epsilon:g} is spent.",
        ),
    ]


def _making(book: Any) -> list[Hazard]:
    layer = "algorithms and software"
    return [
        Hazard(
            layer=layer,
            hazard="bounds, categories or sizes are read off the data",
            status=YES,
            answer="They are declared in the policy; what was read from data is marked not private.",
        ),
        Hazard(
            layer=layer,
            hazard="noise in floating point betrays low bits",
            status=YES,
            answer="Noise is whole numbers on a grid.",
        ),
        Hazard(
            layer=layer,
            hazard="the generator of the noise can be predicted",
            status=YES if book["private"] else NO,
            answer="AES in counter mode, keyed by the operating system."
            if book["private"]
            else "Some charges were made with seeded noise.",
        ),
        Hazard(
            layer=layer,
            hazard="tuning, exploration and failed runs are not counted",
            status=ASK,
            answer="Everything under this ledger is counted. Was anything looked at before, or outside it?",
        ),
        Hazard(
            layer=layer,
            hazard="errors and running times tell about rows",
            status=ASK,
            answer="Errors depend on public facts only; the desk answers at fixed ticks. Who can time it?",
        ),
        Hazard(
            layer=layer,
            hazard="small groups are served worst by the noise",
            status=ASK,
            answer="Answers carry intervals. Were results for small groups looked at before they were used?",
        ),
    ]


def _ground() -> list[Hazard]:
    layer = "security and data"
    return [
        Hazard(layer=layer, hazard=hazard, status=ASK, answer=question)
        for hazard, question in (
            ("the raw data are open to people who need not see them", "Who can read the source? Is it logged?"),
            ("more was collected than is needed", "What could be left out at the source?"),
            ("whoever runs the software is not the one who is trusted", "Who holds the machine and the keys?"),
            ("people did not agree to it", "What were they told, and when?"),
            ("data are kept longer than needed", "When are source and private run folders deleted?"),
        )
    ]
