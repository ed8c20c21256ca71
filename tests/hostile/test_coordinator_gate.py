"""Requests to a coordinator: of strangers, too large, doubled, late, or for another holder's letter."""

import base64
import hashlib
import http.client
import json
import socket
import ssl
import threading
import time
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.errors import InvalidInput, Refused
from sfumato.holders import https
from sfumato.holders.https import LetterClient, LetterServer, write_certificate
from sfumato.holders.parties import Parties
from sfumato.holders.study import Verified
from sfumato.holders.sums import Part, SumRound, SumStudy, new_keys, public_keys
from sfumato.ledger.signing import PrivateKey

KEYS, LARGEST = new_keys(3), 1000
PART = Part(sensitivity=1.0, dimension=1, noise_multiplier=2.0, shares=2, largest=1000)
STUDY = SumStudy(
    name="counts",
    kind="test",
    plan={},
    unit="record",
    delta=1e-5,
    parties=Parties(holders=3),
    rounds=(SumRound((PART,)),),
    keys=public_keys(KEYS),
)
STRANGER = PrivateKey(Ed25519PrivateKey.generate())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server on loopback, with short waits."""
    folder = tmp_path_factory.mktemp("tls")
    write_certificate(folder / "c.pem", folder / "c.pem.key", host="127.0.0.1")
    server = LetterServer(Verified(STUDY, [STUDY.signed(key) for key in KEYS.values()]), largest=LARGEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(https, "_LONG_POLL", 0.2)
        with server.serving("127.0.0.1", 0, certificate=folder / "c.pem", key=folder / "c.pem.key") as port:
            yield SimpleNamespace(server=server, port=port, pem=folder / "c.pem")


@pytest.fixture
def client(served):
    def make(key=KEYS[1], *, study=STUDY, patience=20):
        address = f"127.0.0.1:{served.port}"
        return LetterClient(address, study=study, key=key, certificate=served.pem, patience=patience)

    return make


def signed(key=KEYS[1], *, request="PUT /x", body=b"", study=STUDY.digest, purpose="holders request"):
    said = {"study": study, "request": request, "body": hashlib.sha256(body).hexdigest()}
    return base64.b64encode(json.dumps(key.sign(purpose, said)).encode()).decode()


def status(served, headers, body=b"", *, method="PUT", path="/x"):
    """The answer to a request, of whose body nothing but `body` is sent."""
    context = ssl.create_default_context(cafile=served.pem)
    connection = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=10, context=context)
    connection.putrequest(method, path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(body)
    found = connection.getresponse().status
    connection.close()
    return found


KNOWN = signed()


@pytest.mark.keeps_out(
    "A server that reads a stranger's request before it checks its signature, or takes one node's "
    "answer for another's"
)
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": KNOWN, "Content-Length": "0"}, 204),
        ({"Content-Length": "10"}, 401),
        ({"Authorization": "!", "Content-Length": "10"}, 401),
        ({"Authorization": base64.b64encode(b"[" * 30000).decode(), "Content-Length": "10"}, 401),
        ({"Authorization": base64.b64encode(b"[]").decode(), "Content-Length": "10"}, 401),
        ({"Authorization": base64.b64encode(b'{"study": 1, "request": []}').decode()}, 401),
        ({"Authorization": signed(STRANGER), "Content-Length": "10"}, 401),
        ({"Authorization": signed(study="0" * 64), "Content-Length": "10"}, 401),
        ({"Authorization": signed(purpose="holders study"), "Content-Length": "10"}, 401),
        ({"Authorization": signed(request="PUT /y"), "Content-Length": "10"}, 401),
        ({"Authorization": signed(request="GET /x"), "Content-Length": "10"}, 401),
        ({"Authorization": KNOWN, "Content-Length": "1001"}, 413),
        ({"Authorization": KNOWN, "Content-Length": "9" * 5000}, 413),
        ({"Authorization": KNOWN, "Content-Length": "\u0663".encode()}, 411),
        ({"Authorization": KNOWN, "Content-Length": "\u00b2".encode("latin-1")}, 411),
        ({"Authorization": KNOWN}, 411),
        ({"Authorization": KNOWN, "Transfer-Encoding": "chunked"}, 411),
        ({"Authorization": KNOWN, "Content-Length": "10", "Transfer-Encoding": "chunked"}, 411),
    ],
)
def test_requests_are_refused_by_their_headers(served, headers, expected):
    assert status(served, headers) == expected


def test_a_body_that_was_not_signed_is_dropped(served):
    length = {"Content-Length": "3"}
    assert status(served, {"Authorization": signed(body=b"abc"), **length}, b"abc") == 204
    assert status(served, {"Authorization": signed(body=b"abc"), **length}, b"abd") == 401


def test_a_connection_without_a_handshake_holds_up_no_other(served, client):
    with socket.create_connection(("127.0.0.1", served.port)), client().connected():
        pass


@pytest.mark.parametrize("other", [{"key": STRANGER}, {"study": SimpleNamespace(digest="0" * 64)}])
def test_strangers_are_turned_away(client, other):
    with pytest.raises(Refused, match="401"), client(**other).connected():
        pass


def test_an_unknown_certificate_is_refused_at_once(served, tmp_path):
    write_certificate(tmp_path / "c.pem", tmp_path / "c.pem.key", host="127.0.0.1")
    other = LetterClient(
        f"127.0.0.1:{served.port}", study=STUDY, key=KEYS[1], certificate=tmp_path / "c.pem", patience=3600
    )
    with pytest.raises(Refused, match="certificate"), other.connected():
        pass


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificates_that_cannot_be_read(served, tmp_path, content):
    place = tmp_path / "c.pem"
    if content is not None:
        place.write_text(content)
    with pytest.raises(InvalidInput, match="ask for it"):
        LetterClient("127.0.0.1:1", study=STUDY, key=KEYS[1], certificate=place, patience=1)
    with (
        pytest.raises(InvalidInput, match="holders certificate"),
        served.server.serving("127.0.0.1", 0, certificate=place, key=place),
    ):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1", ":1", "a:b", "a:99999", "a:\u0663"])
def test_addresses_that_cannot_be(served, address):
    with pytest.raises(InvalidInput, match="host:port"):
        LetterClient(address, study=STUDY, key=KEYS[1], certificate=served.pem, patience=1)


def asked(served, letters, patience=20.0):
    """The answers in a thread of their own."""
    found = {}
    thread = threading.Thread(target=lambda: found.update(served.server.ask(letters, patience=patience)))
    thread.start()
    return thread, found


def present(served, *places):
    """Make holders present, as a request does."""
    for place in places:
        served.server.take(place, "", b"")


def test_no_answer_is_lost_on_the_way(served, client):
    """The same letter to all, many times; a holder gets its own letter only."""

    def echo(place):
        own = client(KEYS[place])
        with own.connected():
            while (letter := own.receive()) != b"end":
                own.reply(letter * 2)
            own.reply(b"")

    threads = [threading.Thread(target=echo, args=(place,), daemon=True) for place in KEYS]
    for thread in threads:
        thread.start()
    while len(served.server.ask(dict.fromkeys(KEYS, b"here?"), patience=20)) < len(KEYS):
        time.sleep(0.02)
    for number in range(20):
        letters = {place: b"%d of %d" % (number, place) for place in KEYS}
        assert served.server.ask(letters, patience=20) == {place: one * 2 for place, one in letters.items()}
    served.server.ask(dict.fromkeys(KEYS, b"end"), patience=20)
    for thread in threads:
        thread.join(20)


@pytest.mark.keeps_out(
    "A server that reads a stranger's request before it checks its signature, or takes one node's "
    "answer for another's"
)
def test_a_letter_is_offered_until_it_is_answered_once(served, client):
    """A node that was cut off gets the letter again; a second answer, and another holder's, change nothing."""
    present(served, 1, 2)
    thread, found = asked(served, {1: b"one", 2: b"two"})
    first, again, other = client(), client(), client(KEYS[2])
    assert first.receive() == again.receive() == b"one"
    other._letter = first._letter
    other.reply(b"of another")
    first.reply(b"first")
    again.reply(b"second")
    assert other.receive() == b"two"
    other.reply(b"own")
    thread.join(20)
    assert found == {1: b"first", 2: b"own"}
    with pytest.raises(Refused, match="not answered yet"):
        first.reply(b"more")


def test_a_late_answer_is_dropped_and_absent_holders_are_not_waited_for(served, client):
    present(served, 1)
    thread, found = asked(served, {1: b"one", 3: b"three"}, patience=0.5)
    late = client()
    assert late.receive() == b"one"
    thread.join(20)
    late.reply(b"late")
    assert found == {}
    started = time.monotonic()
    served.server.leave(1)
    assert served.server.ask({1: b"one", 3: b"three"}, patience=20) == {}
    assert time.monotonic() - started < 5


def test_a_larger_letter_than_agreed_is_not_read(served, client):
    present(served, 1)
    thread, _ = asked(served, {1: bytes(100)}, patience=1.0)
    small = client()
    small._largest = 99
    with pytest.raises(Refused, match="larger"):
        small.receive()
    thread.join(20)


def test_a_coordinator_that_is_away_is_tried_again(served, client):
    with pytest.raises(Refused, match="got none"):
        client(patience=0.3).receive()
    gone = LetterClient("127.0.0.1:9", study=STUDY, key=KEYS[1], certificate=served.pem, patience=0.2)
    with pytest.raises(Refused, match=r"within 0\.2 seconds"), gone.connected():
        pass
