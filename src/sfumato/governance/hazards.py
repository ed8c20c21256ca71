"""Answers to the hazards of NIST SP 800-226 (March 2025), from facts that the system has.

The order is that of its pyramid: the guarantee at the top, then its implementation, then its base. The wording
is ours. Facts that no software has are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sfumato.accounting.meaning import LARGEST_DELTA, LARGEST_EPSILON
from sfumato.caveats import OUTSIDE_THE_FIGURE, Caveat, Code, codes
from sfumato.governance.statement import Statement
from sfumato.ledger import Certificate

_PEOPLE = ("person", "patient", "user", "customer", "client")
_FAR = 0.1  # of 1 / number of people: at most so much of it is far below
YES, NO, ASK = "handled", "problem", "please answer"


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """State one hazard and its answer.

    Attributes:
        layer: The part of the pyramid.
        hazard: The hazard in a few words.
        status: "handled", "problem" or "please answer".
        answer: The known facts, or a question.
        caveats: How many caveats of the certificates at hand speak of it.
    """

    layer: str
    hazard: str
    status: str
    answer: str
    caveats: int = 0


def checklist(statement: Statement, certificates: Sequence[Certificate] = ()) -> list[Hazard]:
    """Answer each hazard from a statement, and from certificates of its releases.

    A hazard of which a caveat speaks is never called handled: the signer has to read that caveat.

    Args:
        statement: The statement.
        certificates: Those of releases that the ledger charged. It does not hold them itself.

    Returns:
        The hazards, from the top of the pyramid to its base.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(f"{folder}/l.db", budget=Budget(epsilon=1)) as ledger:
    ...         checklist(Statement.of(ledger))[0].status
    'handled'
    """
    caveats = [caveat for certificate in certificates for caveat in certificate.caveats]
    missing = _missing(statement.data, certificates)
    making = [*_making(statement.data, missing), _stated(statement.data, certificates, missing)]
    return [_weighed(hazard, caveats) for hazard in (*_guarantee(statement.data), *making, *_ground())]


def as_rows(hazards: list[Hazard]) -> list[dict[str, Any]]:
    """The list as JSON."""
    return [asdict(hazard) for hazard in hazards]


_UNWEIGHED = "certificates carry caveats that nobody has weighed"
_SPOKEN_OF = {
    "bounds, categories or sizes are read off the data": {Code.READ_FROM_DATA, Code.SHAPE_READ},
    "noise in floating point betrays low bits": {Code.IDEAL_NORMAL, Code.IDEAL_SAMPLER},
    "the generator of the noise can be predicted": {Code.SEEDED, Code.SEEDED_CHOICE, Code.OWN_SAMPLER},
    "tuning, exploration and failed runs are not counted": {
        Code.SETTINGS_ON_THESE_ROWS,
        Code.SETTINGS_UNCHARGED,
        Code.IMAGE_CHOICES,
    },
    "losses of many releases are not added up": {Code.UNRECORDED, Code.RESERVED},
    "ε is so large that it protects nobody": {Code.NO_PROTECTION},
}
"""Codes of caveats by the hazard that they speak of."""


def _weighed(hazard: Hazard, caveats: Sequence[Caveat]) -> Hazard:
    """Return a hazard with the number of caveats that speak of it: with one, it is never called handled."""
    count = sum(caveat.code in _SPOKEN_OF.get(hazard.hazard, ()) for caveat in caveats)
    if not count:
        return hazard
    status = ASK if hazard.status == YES else hazard.status
    return replace(hazard, status=status, answer=f"{hazard.answer} {_standing(count)}.", caveats=count)


def _standing(count: int) -> str:
    return "1 caveat stands on a certificate" if count == 1 else f"{count} caveats stand on certificates"


def _missing(book: Any, certificates: Sequence[Certificate]) -> int:
    seen = {certificate.head.sequence for certificate in certificates if certificate.head is not None}
    return len([line for line in book["charges"] if line["entry"] not in seen])


def _stated(book: Any, certificates: Sequence[Certificate], missing: int) -> Hazard:
    """Count the caveats of certificates, and the charges without a certificate at hand."""
    count = sum(len(certificate.caveats) for certificate in certificates)
    broken = any(not each.private or codes(each.caveats) & OUTSIDE_THE_FIGURE for each in certificates)
    said = [f"{_standing(count)}. Did who signs read each?"] if count else []
    if missing:
        said.append(f"Certificates of {missing} of {len(book['charges'])} charges are not at hand.")
    return Hazard(
        layer="algorithms and software",
        hazard=_UNWEIGHED,
        status=NO if broken else ASK if said else YES,
        answer=" ".join(said) or "No caveat stands on any certificate.",
        caveats=count,
    )


def _guarantee(book: Any) -> list[Hazard]:
    layer, epsilon, delta = "guarantee", book["epsilon"], book["delta"]
    broken = book["exceeded_by"] is not None
    return [
        Hazard(
            layer=layer,
            hazard="ε is so large that it protects nobody",
            status=YES if epsilon <= LARGEST_EPSILON else NO,
            answer=f"The budget is ε = {epsilon:g}."
            + ("" if epsilon <= LARGEST_EPSILON else f" Above {LARGEST_EPSILON:g} it says little."),
        ),
        _failure(layer, delta, book["people"], book["unit"]),
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


def _failure(layer: str, delta: float, people: float | None, unit: str) -> Hazard:
    expected = delta * (people or 0)  # people whose records a mechanism of this δ may publish as they are
    if not delta:
        status, answer = YES, "δ is 0."
    elif people is None:
        status = NO if delta >= LARGEST_DELTA else ASK
        answer = f"δ = {delta:g}. Is it far below 1 / number of {unit}s?"
    else:
        status = NO if expected >= 1 or delta >= LARGEST_DELTA else YES if expected <= _FAR else ASK
        answer = f"δ = {delta:g}, and 1 / number of {unit}s = {1 / people:.3g}, of {people:,.0f}."
        answer += " Is that far enough?" if status == ASK else ""
    return Hazard(layer=layer, hazard="δ is not far below 1 / number of people", status=status, answer=answer)


def _making(book: Any, missing: int) -> list[Hazard]:
    layer = "algorithms and software"
    return [
        Hazard(
            layer=layer,
            hazard="bounds, categories or sizes are read off the data",
            status=ASK if missing else YES,
            answer="They are declared in the policy; where they were read from data, the certificate says so."
            + (" Does any?" if missing else ""),
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
