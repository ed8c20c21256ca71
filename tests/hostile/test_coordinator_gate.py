"""Requests to a coordinator: of strangers, too large, or in another holder's name."""

import asyncio
import base64
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sfumato.errors import InvalidInput
from sfumato.holders.flower import bytes_of, part_with_bytes, record_of
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
        ([KNOWN, (b"content-length", b"10"), (b"transfer-encoding", b"chunked")], 411),
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
    first, second = (get_all_nested_objects(record_of(b"the same")) for _ in range(2))
    assert not set(first) & set(second)
    contents = [bytes_of(name, part.deflate()) for name, part in first.items() if not part.children]
    assert contents == [b"the same"]


@pytest.mark.parametrize("part", [b"", b"nothing of Flower's", b"ConfigRecord  0\x00\xff"])
def test_parts_that_hold_no_record_are_refused(part):
    with pytest.raises(InvalidInput):
        bytes_of("0" * 64, part)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_messages_of_another_shape_are_refused(depth):
    tree = SimpleNamespace(object_id="0" * 64, children=[])
    for _ in range(depth):
        tree = SimpleNamespace(object_id="1" * 64, children=[tree, tree] if depth == 3 else [tree])
    with pytest.raises(InvalidInput):
        part_with_bytes(tree)
