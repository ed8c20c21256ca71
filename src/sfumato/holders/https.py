"""Letters over HTTPS: the coordinator's server, a holder's client, and the certificate between them.

A holder asks for its next letter with GET, which stays open until there is one, and answers it with PUT. Each
request carries a signature by the holder's key in the study, over method, path and body. TLS hides requests
from the network and identifies the coordinator. Privacy does not depend on either: inputs are masked and keys
are signed.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.client
import ipaddress
import json
import secrets
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sfumato.errors import InvalidInput, Refused, SfumatoError
from sfumato.holders.study import Agreed, Verified
from sfumato.ledger.signing import PrivateKey, signer
from sfumato.storage import write_new

_PURPOSE = "holders request"
_LETTER = "Sfumato-Letter"  # the header that names a letter
_LONG_POLL = 5.0  # seconds that a request for the next letter stays open
_SILENCE = 60.0  # seconds without a byte after which a connection is closed
_LARGEST_PAUSE = 5.0
_MOST_THREADS = 4096  # each connection has one
_DAYS = 365


class LetterServer:
    """Offers letters to holders by their places, and collects the answers that arrive in time.

    *Guarantees*: the study carries the signature of every holder. A request is refused by its headers, before
    its body is read, unless a holder of the study signed it and it is at most `largest` bytes long. A holder
    gets and answers its own letters only, and one answer to a letter is taken.
    """

    def __init__(self, agreed: Verified[Any], *, largest: int = 2**28) -> None:
        self.study: Agreed = agreed.study
        self.largest = largest
        self._news = threading.Condition()
        self._letters: dict[int, tuple[str, bytes]] = {}  # by place: a name, and the content
        self._answers: dict[int, bytes] = {}
        self._present: set[int] = set()
        self._closed = False

    @contextmanager
    def serving(self, host: str, port: int, *, certificate: Path, key: Path) -> Iterator[int]:
        """Answer holders within the block; yields the port, of which 0 lets the system choose one."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:  # SSLError is one
            raise InvalidInput(
                f"expected a certificate and its key in {certificate} and {key}, got other files or none; see: "
                "sfumato holders certificate"
            ) from error
        try:
            server = _TlsServer((host, port), partial(_Request, self), context)
        except OSError as error:
            raise InvalidInput(
                f"expected a free port and an address of this machine, got {host}:{port}; choose another with "
                "--address"
            ) from error
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            with self._news:
                self._closed = True
                self._news.notify_all()
            server.shutdown()
            thread.join()
            server.server_close()

    def ask(self, letters: Mapping[int, bytes], *, patience: float) -> dict[int, bytes]:
        """Return the answers that arrive within `patience` seconds; absent holders are not waited for."""
        with self._news:
            self._letters = {place: (secrets.token_hex(16), letter) for place, letter in letters.items()}
            self._answers = {}
            self._news.notify_all()
            self._news.wait_for(lambda: not (self._present & set(self._letters)), timeout=patience)
            self._present -= set(self._letters)  # a late holder is absent until its next request
            self._letters = {}
            return self._answers

    def next_letter(self, place: int) -> tuple[str, bytes] | None:
        with self._news:
            self._present.add(place)
            self._news.wait_for(lambda: self._closed or place in self._letters, timeout=_LONG_POLL)
            return None if self._closed else self._letters.get(place)

    def take(self, place: int, name: str, answer: bytes) -> None:
        """Keep an answer; a late or a second one is dropped."""
        with self._news:
            self._present.add(place)
            if place in self._letters and name == self._letters[place][0]:
                del self._letters[place]
                self._answers[place] = answer
                self._news.notify_all()

    def leave(self, place: int) -> None:
        with self._news:
            self._present.discard(place)
            self._news.notify_all()


class _TlsServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(address, handler)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        # The handshake happens in the thread of the connection, where it may take its time.
        wrapped = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return wrapped, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return threading.active_count() < _MOST_THREADS

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a connection that failed; its holder sends the request again."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE
    disable_nagle_algorithm = True

    def __init__(self, letters: LetterServer, *arguments: Any) -> None:
        self._letters = letters
        super().__init__(*arguments)

    def _handle(self) -> None:
        place, body = self._checked()
        if place is None:
            return
        if self.command == "PUT":
            self._letters.take(place, self.path.removeprefix("/"), body)
        elif self.command == "DELETE":
            self._letters.leave(place)
        elif self.command == "GET" and (found := self._letters.next_letter(place)):
            name, letter = found
            self._send(200, letter, name=name)
            return
        self._send(204)

    do_GET = do_PUT = do_DELETE = do_HEAD = _handle

    def _checked(self) -> tuple[int | None, bytes]:
        """Return the place of the holder that signed this request, and the body; or refuse it."""
        length = self.headers.get("Content-Length", "")
        try:
            said = json.loads(base64.b64decode(self.headers.get("Authorization", ""), validate=True))
            study, request = said["study"], said["request"]
            place = self._letters.study.place_of(signer(_PURPOSE, said))
        except (SfumatoError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return self._refuse(401)
        if study != self._letters.study.digest or request != f"{self.command} {self.path}":
            return self._refuse(401)
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            return self._refuse(411)  # a body in chunks may be of any length
        if len(length) > 15 or int(length) > self._letters.largest:
            return self._refuse(413)
        body = self.rfile.read(int(length))
        if said.get("body") != hashlib.sha256(body).hexdigest():
            return self._refuse(401)
        return place, body

    def _refuse(self, status: int) -> tuple[None, bytes]:
        self.close_connection = True
        self._send(status)
        return None, b""

    def _send(self, status: int, content: bytes = b"", *, name: str = "") -> None:
        self.send_response(status)
        self.send_header(_LETTER, name)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests off the terminal."""


class LetterClient:
    """Gets a holder's letters from the coordinator and sends the answers.

    A coordinator that is away is tried again, for `patience` seconds. Letters of more than `largest` bytes are
    not read.
    """

    def __init__(
        self,
        address: str,
        *,
        study: Agreed,
        key: PrivateKey,
        certificate: Path | None,
        patience: float,
        largest: int = 2**28,
    ) -> None:
        try:
            context = ssl.create_default_context(cafile=certificate)
        except OSError as error:  # SSLError is one
            raise InvalidInput(
                f"expected the coordinator's certificate in {certificate}, got another file or none; ask for it"
            ) from error
        host, port = host_and_port(address)
        self._connection = http.client.HTTPSConnection(host, port, timeout=_SILENCE, context=context)
        self._study, self._key, self._patience, self._largest = study.digest, key, patience, largest
        self._letter = ""  # the name of the one to answer

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Reach the coordinator, and take leave of it after the block."""
        self._retried("HEAD", "/")
        try:
            yield
        finally:
            with suppress(OSError, http.client.HTTPException):
                self._call("DELETE", "/", b"")
            self._connection.close()

    def receive(self) -> bytes:
        """Return the next letter; waits for it."""
        ends = time.monotonic() + self._patience
        while time.monotonic() < ends:
            self._letter, letter = self._retried("GET", "/")
            if self._letter:
                return letter
        raise Refused(
            f"expected a message of the coordinator within {self._patience:g} seconds, got none; ask whether "
            "it runs, and start again: a paid study stays paid, and no round is answered twice"
        )

    def reply(self, letter: bytes) -> None:
        """Answer the letter that was received last; one answer each."""
        name, self._letter = self._letter, ""
        if not name:
            raise Refused("expected a letter that was not answered yet, got none")
        self._retried("PUT", f"/{name}", letter)

    def _retried(self, method: str, path: str, body: bytes = b"") -> tuple[str, bytes]:
        ends, pause = time.monotonic() + self._patience, 0.1
        while True:
            try:
                status, name, content = self._call(method, path, body)
                if status < 400:
                    return name, content
                if status < 500:
                    raise Refused(
                        f"expected the coordinator to accept a request of this holder, got status {status}; "
                        "compare study and key with the coordinator"
                    )
                problem: object = f"status {status}"
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                problem = error
            if time.monotonic() > ends or isinstance(problem, ssl.SSLCertVerificationError):
                raise Refused(
                    f"expected the coordinator to answer within {self._patience:g} seconds, got: {problem}; "
                    "check its address and certificate"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LARGEST_PAUSE)

    def _call(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        said = {
            "study": self._study,
            "request": f"{method} {path}",
            "body": hashlib.sha256(body).hexdigest(),
        }
        signed = base64.b64encode(json.dumps(self._key.sign(_PURPOSE, said)).encode()).decode()
        headers = {"Authorization": signed, "Content-Length": str(len(body))}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read(self._largest + 1)
        if len(content) > self._largest:
            raise Refused(f"expected a letter of at most {self._largest} bytes, got a larger one")
        return answer.status, answer.headers.get(_LETTER, ""), content


def host_and_port(address: str) -> tuple[str, int]:
    """Split an address, host:port."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidInput(f"expected host:port, got {address}")
    return host, int(port)


def write_certificate(certificate: Path, key: Path, *, host: str) -> None:
    """Write a new key, readable by its owner only, and a certificate for the coordinator's address."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sfumato coordinator")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([_host(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        write_new(key, private, readable=False)
        write_new(certificate, signed.public_bytes(pem), readable=True)
    except FileExistsError as error:
        raise InvalidInput(
            f"expected no files at {certificate} and {key}, got one; choose other names"
        ) from error


def _host(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidInput(
            "expected the name or IP address of the coordinator's machine, got another"
        ) from error
