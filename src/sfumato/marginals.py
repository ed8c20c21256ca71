"""The counts of a policy's table for a synthetic one, on the engine that queries use."""

from __future__ import annotations

import secrets
from typing import Any

from sfumato.policy import Policy
from sfumato.query.engines import open_engine
from sfumato.query.expressions import column_name
from sfumato.query.measures import UNIT
from sfumato.synthesis import EngineMarginals, Request


def engine_marginals(
    request: Request,
    rules: Policy,
    *,
    engine: str | None = None,
    master: str = "local[*]",
    data: Any | None = None,
) -> EngineMarginals:
    """Return the marginals of the policy's source, or of a frame; nothing is read before `release` counts."""
    opened = open_engine(rules, name=engine, master=master, data=data)
    return EngineMarginals(
        opened.declared(rules),
        request.columns,
        names={column.name: column_name(column.name, rules) for column in request.columns},
        unit=None if rules.unit.column is None else UNIT,
        rows=rules.unit.rows,
        salt=secrets.token_hex(16),
        prepare=opened.prepare,
        fetch=opened.fetch,
        keep=opened.name == "duckdb",
    )
