"""A witness reaches a file or an address, or the command fails."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sfumato.cli.key import deliver
from sfumato.errors import InvalidInput, LedgerError

WITNESS = {"kind": "witness", "sequence": 3}


@pytest.fixture
def outside():
    """An address, and what was posted there; it refuses the path /no."""
    posted = []

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != "/no":
                posted.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(500 if self.path == "/no" else 204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Keeper)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_to_an_address(outside):
    address, posted = outside
    deliver(WITNESS, f"{address}/heads")
    assert posted == [("application/json", WITNESS)]


def test_an_address_that_does_not_take_it(outside):
    address, posted = outside
    with pytest.raises(LedgerError, match="nothing was kept"):
        deliver(WITNESS, f"{address}/no")
    assert posted == []


def test_to_a_file_that_may_be_replaced_or_not(tmp_path):
    place = tmp_path / "head.json"
    deliver(WITNESS, str(place))
    deliver({**WITNESS, "sequence": 4}, str(place))
    assert json.loads(place.read_text())["sequence"] == 4
    with pytest.raises(InvalidInput, match="expected no file"):
        deliver(WITNESS, str(place), replace=False)
    assert json.loads(place.read_text())["sequence"] == 4
