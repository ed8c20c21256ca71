"""Many analysts at once, and requests that nobody would think of: nothing is spent twice, nothing breaks."""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install 'sfumato[dev]'")
EXAMPLES = int(os.environ.get("SFUMATO_DESK_EXAMPLES", "4"))


def test_many_at_once_spend_nothing_twice(another):
    """Everybody asks more than their share has, all at once: the ledger and the answers agree to the entry."""
    served = another(tick=0.2)
    served.warm()
    people = [
        served.person(f"analyst {i}", "analyst", allocation=0.3, team=None, signed_in=False) for i in range(6)
    ]
    body = {"sql": "SELECT COUNT(*) FROM people", "epsilon": 0.1}

    async def all_at_once():
        return await asyncio.gather(
            *(
                served.send_async(
                    "POST",
                    "/api/v1/tables/people/query",
                    json=body,
                    headers={"authorization": f"Bearer {one.token}"},
                )
                for one in people
                for _ in range(5)
            )
        )

    answers = asyncio.run(all_at_once())
    assert sorted({one.status_code for one in answers}) == [200, 409]
    entries = [one.json()["entry"]["sequence"] for one in answers if one.status_code == 200]
    charges = served.ledger.charges()
    assert sorted(entries) == [charge.head.sequence for charge in charges]
    assert len(entries) == len(set(entries)) == 6 * 3
    for one in people:
        mine = [charge for charge in charges if charge.allocation == f"{one.name}: questions"]
        assert len(mine) == 3
    served.ledger.verify()


def test_no_request_breaks_the_interface(served, ann):
    """Requests made from the OpenAPI page, good and bad ones: none is answered by a failure of the server."""
    served.warm()
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", served.app)
    strategies = [found.ok().as_strategy() for found in schema.get_all_operations()]
    assert len(strategies) >= 6
    seen = set()
    for strategy in strategies:

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=strategy)
        def ask(case):
            served.desk.buckets.__init__(size=1000, rate=1.0)
            response = case.call(headers={"authorization": f"Bearer {ann.token}"})
            seen.add(response.status_code)
            assert response.status_code < 500

        ask()
    assert 200 in seen
