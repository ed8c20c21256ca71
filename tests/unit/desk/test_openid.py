"""Signing in with a provider, against a tiny one; and providers and browsers that cheat."""

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from sfumato.desk.accounts import add_person
from sfumato.desk.limits import Turns

KEY, OTHER = (ECKey.generate_key("P-256", {"kid": "a"}) for _ in range(2))


class Provider(BaseHTTPRequestHandler):
    """Gives a token for every code that it is shown with the right verifier."""

    key = KEY

    challenges: ClassVar[dict[str, str]] = {}
    claims: ClassVar[dict[str, object]] = {}

    def do_GET(self):
        here = f"http://127.0.0.1:{self.server.server_port}"
        if self.path == "/keys":
            self.say({"keys": [KEY.as_dict(private=False)]})
            return
        places = {"authorization_endpoint": f"{here}/authorize", "token_endpoint": f"{here}/token"}
        self.say({"issuer": here, **places, "jwks_uri": f"{here}/keys"})

    def do_POST(self):
        asked = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        digest = hashlib.sha256(asked["code_verifier"][0].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if self.challenges.get(asked["code"][0]) != challenge or asked["client_secret"] != ["hush"]:
            self.say({"error": "invalid_grant"}, 400)
            return
        if self.key is None:
            body = base64.urlsafe_b64encode(json.dumps(self.claims).encode()).decode().rstrip("=")
            token = f"eyJhbGciOiJub25lIn0.{body}."
        else:
            token = jwt.encode({"alg": "ES256", "kid": "a"}, self.claims, self.key)
        self.say({"access_token": "x", "token_type": "bearer", "id_token": token})

    def say(self, found, status=200):
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def signing_in(another):
    """Go to the provider and come back with claims that a test chooses."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    issuer = f"http://127.0.0.1:{server.server_port}"
    provider = f'[openid]\nissuer = "{issuer}"\nclient = "desk"\nsecret = "hush"\n'
    with pytest.raises(ValueError, match="expected address"):
        another(settings=provider)
    served = another(settings=f'address = "http://desk"\n{provider}')
    add_person(served.desk, "ann", role="analyst", subject="ann-at-work")

    def sign_in(*, state=None, cookies=None, key=KEY, **changed):
        begun = served.send("GET", "/openid")
        asked = {
            name: values[0] for name, values in parse_qs(urlsplit(begun.headers["location"]).query).items()
        }
        Provider.challenges = {"a-code": asked["code_challenge"]}
        Provider.claims = {
            "iss": issuer,
            "aud": "desk",
            "sub": "ann-at-work",
            "exp": int(time.time() + 60),
            "iat": int(time.time()),
            "nonce": asked["nonce"],
            **changed,
        }
        Provider.key = key
        back = f"/openid/back?code=a-code&state={state or asked['state']}"
        return served.send("GET", back, cookies=dict(begun.cookies) if cookies is None else cookies)

    yield served, sign_in
    server.shutdown()
    server.server_close()


@pytest.mark.keeps_out("A return address of a sign-in that the request itself names")
def test_whom_an_account_names_is_signed_in(signing_in):
    served, sign_in = signing_in
    back = sign_in()
    assert (back.status_code, back.headers["location"]) == (303, "/ask")
    assert served.send("GET", "/ask", cookies=dict(back.cookies)).status_code == 200
    assert "with your organisation" in served.send("GET", "/sign-in").text


@pytest.mark.parametrize(
    "cheat",
    [
        {"sub": "somebody-else"},
        {"sub": ""},
        {"iss": "https://other.example"},
        {"aud": "another-application"},
        {"aud": ["desk", "another-application"]},
        {"exp": 1},
        {"exp": None},
        {"nonce": "of-another-attempt"},
        {"key": OTHER},
        {"key": None},
        {"state": "of-another-attempt"},
        {"cookies": {}},
        {"cookies": {"desk_openid": "x.y.z"}},
        {"cookies": {"desk_openid": "[1]"}},
    ],
    ids=lambda cheat: "-".join(f"{name}={value}" for name, value in cheat.items())[:40],
)
def test_nobody_else_is(signing_in, cheat):
    _, sign_in = signing_in
    back = sign_in(**cheat)
    assert back.status_code in (403, 409)
    assert "desk_session" not in back.cookies


def test_without_a_provider_there_is_nothing(served):
    assert served.send("GET", "/openid").status_code == 404
    assert served.send("GET", "/openid/back?code=x&state=y").status_code == 404


def test_a_slow_provider_does_not_hold_up_the_desk(signing_in, monkeypatch):
    """Strangers can make the desk ask the provider; some at a time, and the next ones come later."""
    served, _ = signing_in
    with monkeypatch.context() as patch:
        patch.setattr(served.desk, "provider", Turns(at_once=0, of_one=0))
        for path in ("/openid", "/openid/back?code=x&state=y"):
            later = served.send("GET", path, cookies={"desk_openid": "y.n.v"})
            assert (later.status_code, later.headers["retry-after"]) == (429, "2")
    assert served.send("GET", "/openid").status_code == 303
