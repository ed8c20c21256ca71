"""Signing in with an OpenID provider: authorization code with PKCE (RFC 7636), OpenID Connect Core 3.1.

The ID token comes straight from the provider's token address, over a connection that the desk opened and whose
certificate was checked; its issuer is then known without the token's signature (Core 3.1.3.7, point 6). Issuer,
audience, expiry and nonce are checked. Who somebody is to the provider says nothing about what they may do: an
account must be there that names them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from sfumato.desk.config import OpenId
from sfumato.errors import Refused

PATIENCE = 10.0
LARGEST = 256 * 1024
_FAILED = "the provider did not confirm who you are; try again, or sign in with a password"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a browser must bring back: kept in its cookie, and worth nothing to another."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def fresh(cls) -> Attempt:
        return cls(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
        )

    def to_cookie(self) -> str:
        return f"{self.state}.{self.nonce}.{self.verifier}"

    @classmethod
    def from_cookie(cls, text: str) -> Attempt:
        parts = text.split(".")
        if len(parts) != 3 or not all(parts):
            raise Refused(_FAILED)
        return cls(state=parts[0], nonce=parts[1], verifier=parts[2])


def address(provider: OpenId, attempt: Attempt, *, back: str) -> str:
    """Where the browser is sent to sign in."""
    digest = hashlib.sha256(attempt.verifier.encode()).digest()
    asked = {
        "response_type": "code",
        "scope": "openid",
        "client_id": provider.client,
        "redirect_uri": back,
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
    }
    return f"{_offered(provider)['authorization_endpoint']}?{urllib.parse.urlencode(asked)}"


def subject(provider: OpenId, attempt: Attempt, *, state: str, code: str, back: str) -> str:
    """Who came back from the provider: the issuer's name and theirs.

    Raises:
        Refused: If anything is not as it was asked for.
    """
    if not code or not hmac.compare_digest(state.encode(), attempt.state.encode()):
        raise Refused(_FAILED)
    asked = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": back,
        "client_id": provider.client,
        "client_secret": provider.secret,
        "code_verifier": attempt.verifier,
    }
    found = _fetched(str(_offered(provider)["token_endpoint"]), urllib.parse.urlencode(asked).encode())
    claims = _claims(str(found.get("id_token", "")))
    audience = claims.get("aud")
    mine = audience == provider.client or (isinstance(audience, list) and audience == [provider.client])
    nonce = str(claims.get("nonce", ""))
    expires = claims.get("exp")
    valid = (
        claims.get("iss") == provider.issuer
        and mine
        and isinstance(expires, int | float)
        and expires > time.time()
        and hmac.compare_digest(nonce.encode(), attempt.nonce.encode())
        and isinstance(claims.get("sub"), str)
        and claims["sub"]
    )
    if not valid:
        raise Refused(_FAILED)
    return f"{provider.issuer}#{claims['sub']}"


def _offered(provider: OpenId) -> dict[str, Any]:
    """What the provider says of itself; its addresses must be its own scheme's."""
    found = _fetched(f"{provider.issuer}/.well-known/openid-configuration")
    scheme = urllib.parse.urlsplit(provider.issuer).scheme
    places = [str(found.get(name, "")) for name in ("authorization_endpoint", "token_endpoint")]
    if found.get("issuer") != provider.issuer or any(not one.startswith(f"{scheme}://") for one in places):
        raise Refused(_FAILED)
    return found


def _fetched(place: str, body: bytes | None = None) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(place, data=body, timeout=PATIENCE) as answer:
            found = json.loads(answer.read(LARGEST))
    except (urllib.error.URLError, OSError, ValueError):
        raise Refused(_FAILED) from None
    if not isinstance(found, dict):
        raise Refused(_FAILED)
    return found


def _claims(token: str) -> dict[str, Any]:
    try:
        body = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError, binascii.Error):
        raise Refused(_FAILED) from None
    if not isinstance(found, dict):
        raise Refused(_FAILED)
    return found
