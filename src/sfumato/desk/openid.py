"""Signing in with an OpenID provider by authlib: authorization code with PKCE, signed ID tokens.

The provider says who signs in, and nothing about access: an account must exist that names the subject.
"""

from __future__ import annotations

import hmac
import json
import secrets
from typing import Any

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from sfumato.desk.config import OpenId
from sfumato.errors import Refused

COOKIE = "desk_openid"
PATIENCE = 10.0
ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA"]
_FAILED = "the provider did not confirm who you are; try again, or sign in with a password"


class Client:
    """One attempt to sign in; the browser keeps its state, nonce and verifier in a cookie of its own."""

    def __init__(self, provider: OpenId, *, back: str) -> None:
        self._provider, self._back = provider, back

    def begin(self) -> tuple[str, str]:
        """Return the address to which the browser is sent, and the content of its cookie."""
        kept = {name: secrets.token_urlsafe(48) for name in ("state", "nonce", "verifier")}
        try:
            with self._session() as session:
                place = self._metadata()["authorization_endpoint"]
                words = {"state": kept["state"], "nonce": kept["nonce"], "code_verifier": kept["verifier"]}
                return session.create_authorization_url(place, **words)[0], json.dumps(kept)
        except (httpx.HTTPError, AuthlibBaseError, ValueError, TypeError, LookupError) as error:
            raise Refused(_FAILED) from error

    def subject(self, cookie: str, *, state: str, code: str) -> str:
        """Return issuer and subject of the visitor who came back.

        Raises:
            Refused: If state, code, signature, issuer, audience, expiry or nonce is not as it must be.
        """
        try:
            kept = json.loads(cookie)
            if not code or not hmac.compare_digest(state.encode(), str(kept["state"]).encode()):
                raise Refused(_FAILED)
            found = self._metadata()
            with self._session() as session:
                token = session.fetch_token(
                    found["token_endpoint"], code=code, state=state, code_verifier=kept["verifier"]
                )
            keys = _fetched(found["jwks_uri"])
            read = jwt.decode(token["id_token"], KeySet.import_key_set(keys), algorithms=ALGORITHMS)
            expected = {"iss": self._provider.issuer, "aud": self._provider.client}
            claims = CodeIDToken(
                read.claims,
                read.header,
                {name: {"essential": True, "value": value} for name, value in expected.items()},
                {"nonce": str(kept["nonce"]), "client_id": self._provider.client},
            )
            claims.validate()
            # a list of audiences has this desk alone; the subject is a text
            valid = claims["aud"] in (expected["aud"], [expected["aud"]]) and isinstance(claims["sub"], str)
        except (httpx.HTTPError, AuthlibBaseError, JoseError, ValueError, TypeError, LookupError) as error:
            raise Refused(_FAILED) from error
        if not (valid and claims["sub"] and kept["nonce"]):
            raise Refused(_FAILED)
        return f"{self._provider.issuer}#{claims['sub']}"

    def _session(self) -> Any:
        return OAuth2Client(
            client_id=self._provider.client,
            client_secret=self._provider.secret,
            token_endpoint_auth_method="client_secret_post",
            scope="openid",
            redirect_uri=self._back,
            code_challenge_method="S256",
            timeout=PATIENCE,
        )

    def _metadata(self) -> dict[str, Any]:
        """Return the provider's addresses, which must have its own scheme, and be those of this issuer."""
        found = _fetched(f"{self._provider.issuer}/.well-known/openid-configuration")
        scheme = self._provider.issuer.partition("://")[0]
        places = [found[name] for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        if found.get("issuer") != self._provider.issuer or any(
            not str(one).startswith(f"{scheme}://") for one in places
        ):
            raise Refused(_FAILED)
        return found


def _fetched(place: str) -> Any:
    return httpx.get(place, timeout=PATIENCE).raise_for_status().json()
