"""All kinds of results, and the one function that reads any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.errors import InvalidInput
from sfumato.results import format_1, runs, several, studies
from sfumato.results.record import build
from sfumato.results.result import FORMAT, Result

KINDS: Mapping[str, type[Result]] = {
    made.kind: made
    for made in (
        runs.Training,
        runs.PlainTraining,
        runs.Tuning,
        runs.Votes,
        runs.Reports,
        runs.Audit,
        runs.Tracing,
        runs.LedgerStatement,
        runs.Failure,
        several.SeveralHolders,
        studies.Comparison,
        studies.Sweep,
        studies.NoisedDigits,
        studies.SyntheticDigits,
        studies.Differencing,
        studies.Membership,
        studies.Reproduction,
    )
}


def from_json(data: Mapping[str, Any]) -> Result:
    """The result that `to_json` wrote, or that version 0.1 did.

    >>> from_json({"kind": "failure", "format": 2, "title": "a stage", "sentence": "no data"})
    Failure(title='a stage', sentence='no data')
    """
    if "format" not in data:
        return format_1.read(data)
    if data["format"] != FORMAT:
        raise InvalidInput(
            f"expected a result of format {FORMAT} or older, got format={data['format']!r}; update sfumato"
        )
    if not isinstance(data.get("kind"), str) or data["kind"] not in KINDS:
        raise InvalidInput(
            f"expected a result of a known kind, got kind={data.get('kind')!r}; known: {_known()}"
        )
    fields = {name: value for name, value in data.items() if name not in ("kind", "format")}
    return build(KINDS[data["kind"]], fields)


def _known() -> str:
    return ", ".join(sorted(KINDS))
