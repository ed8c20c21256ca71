"""Requests to a coordinator: of strangers, too large, or in another holder's name."""

import asyncio
import base64
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sfumato.holders.flower import bytes_of, record_of
from sfumato.holders.gate import Gate, OwnAnswers

HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
KNOWN = (HEADER, base64.b64encode(b"key of delft"))


def status(headers, kind="http"):
    """What the gate answers; 200 is that of the application behind it. Nobody may read the body before."""
    sent = []

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        raise AssertionError("the body was read")

    async def send(message):
        sent.append(message.get("status"))

    gate = Gate(application, known=[b"key of delft"], largest=1000)
    asyncio.run(gate({"type": kind, "headers": headers}, receive, send))
    return sent[0] if sent else None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([KNOWN, (b"content-length", b"1000")], 200),
        ([(b"content-length", b"10")], 401),
        ([(HEADER, b"a stranger's"), (b"content-length", b"10")], 401),
        ([KNOWN, (b"content-length", b"1001")], 413),
        ([KNOWN, (b"content-length", b"9" * 5000)], 413),
        ([KNOWN, (b"content-length", "٣".encode())], 411),
        ([KNOWN, (b"transfer-encoding", b"chunked")], 411),
    ],
)
def test_requests_are_turned_away_by_their_headers(headers, expected):
    assert status(headers) == expected


def test_nothing_but_requests_gets_through():
    assert status([KNOWN], kind="websocket") is None


@pytest.mark.parametrize(("sender", "passed"), [(7, True), (8, False)])
def test_a_node_answers_its_own_letters(sender, passed):
    answer = SimpleNamespace(metadata=SimpleNamespace(src_node_id=sender))
    asked = SimpleNamespace(messages_list=[answer], node=SimpleNamespace(node_id=7))
    request = SimpleNamespace(state=SimpleNamespace(protobuf_request=asked))

    async def following(request):
        return "passed"

    answered = asyncio.run(OwnAnswers(app=None).dispatch(request, following))
    assert (answered == "passed") is passed


def test_messages_of_the_same_content_share_no_parts():
    """Else one that is done with takes parts away from one that has yet to arrive, and a letter is lost."""
    first, second = record_of(b"the same"), record_of(b"the same")
    assert not set(get_all_nested_objects(first)) & set(get_all_nested_objects(second))
    assert bytes_of(SimpleNamespace(content=first)) == b"the same"
