"""Accounts with a role and a team; their passwords (argon2), API tokens and sessions (kept as digests)."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import ColumnElement, Connection, Row, Table, select, true

from sfumato import _validate
from sfumato.desk import database as db
from sfumato.desk.database import Database
from sfumato.desk.limits import Crowded, Tries
from sfumato.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from sfumato.desk.desk import Desk
    from sfumato.desk.grants import Wanted

LONGEST_NAME = 64
SHORTEST_PASSWORD, LONGEST_PASSWORD = 12, 256
IDLE, LONGEST = 30 * 60.0, 12 * 3600.0
"""Seconds after which a session ends: since its last request, and in all."""
COOKIE, VISIT = "desk_session", "desk_visit"
_SEEN_EVERY = 60.0  # seconds between writes of a session's last request
_HASHER = PasswordHasher()  # argon2id with RFC 9106's second recommended setting


class Role(StrEnum):
    """An officer answers for the budget, an analyst spends an allocation, a reader sees the public facts."""

    OFFICER = "officer"
    ANALYST = "analyst"
    READER = "reader"


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account that was authenticated, with the allocation of the API token that was presented, if any.

    `epoch` is the account's when its password was verified: sessions and tokens of another one are over.
    """

    id: int
    name: str
    role: Role
    team: str
    grant: int | None = None
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """A new account with its token and password, which are shown once; the database keeps digests."""

    account: Account
    token: str
    password: str


def checked_name(name: str, kind: str = "name") -> str:
    """Return a name in its normal form, printable and of at most 64 letters.

    >>> checked_name(" Ａnn ")
    'Ann'
    """
    clean = unicodedata.normalize("NFKC", name).strip()
    if not clean or len(clean) > LONGEST_NAME or not clean.isprintable():
        raise InvalidInput(f"expected {kind} to be 1 to {LONGEST_NAME} printable letters, got {clean[:80]!r}")
    return clean


def checked_line(name: str, value: str, *, longest: int = 300) -> str:
    """Return one line of printable words, as a ledger takes them."""
    clean = unicodedata.normalize("NFC", " ".join(value.split()))
    if not clean or len(clean) > longest or not clean.isprintable():
        raise InvalidInput(f"expected {name} to be one line of 1 to {longest} letters, got {clean[:80]!r}")
    return clean


def key_of(name: str) -> str:
    """Return the form in which names are compared: case, width and spelling of accents do not count."""
    return unicodedata.normalize("NFKC", checked_name(name).casefold())


def add(
    connection: Connection, name: str, *, role: str, team: str | None = None, stored: str | None = None
) -> Account:
    """Add an account, with the hash of its password; without one it cannot sign in."""
    name = checked_name(name)
    role = Role(_validate.one_of("role", role, [str(one) for one in Role]))
    team = checked_name(team or name, "team")
    check_free(connection, name)
    values = {"name": name, "key": key_of(name), "role": str(role), "team": team, "password": stored}
    number = db.inserted(connection, db.accounts, **values, created=time.time())
    return Account(id=number, name=name, role=role, team=team)


def add_person(
    desk: Desk,
    name: str,
    *,
    role: str,
    team: str | None = None,
    purpose: str = "questions",
    wanted: Wanted | None = None,
    table: str | None = None,
    subject: str | None = None,
) -> Secrets:
    """Add an account with a password, a token and, if wanted, an allocation of `table` that the token spends.

    `subject` is the account's at the OpenID provider.
    """
    from sfumato.desk import grants

    if wanted is not None and role != Role.ANALYST:
        raise InvalidInput(f"expected role=analyst with an allocation, got role={role!r}; others do not spend")
    if subject is not None and desk.settings.openid is None:
        raise InvalidInput("expected a section [openid] in the desk's settings for --subject, got none")
    dataset = None if wanted is None else desk.dataset(table)
    password = fresh_password()
    stored = hashed(password)
    with desk.database.write() as connection:
        account = add(connection, name, role=role, team=team, stored=stored)
        mine = db.accounts.c.id == account.id
        if subject is not None and desk.settings.openid is not None:
            named = f"{desk.settings.openid.issuer}#{subject}"
            if connection.execute(select(db.accounts.c.id).where(db.accounts.c.subject == named)).first():
                raise InvalidInput(f"expected a subject that no account has yet, got subject={subject!r}")
            connection.execute(db.accounts.update().where(mine).values(subject=named))
    try:
        grant = None
        if dataset is not None and wanted is not None:
            grant = grants.give(desk, dataset, wanted, said=f"set aside for {account.name} at the command line")
        with desk.database.write() as connection:
            token = add_token(connection, account, purpose=purpose, grant=grant)
    except BaseException:
        with desk.database.write() as connection:
            connection.execute(db.accounts.delete().where(mine))
        raise
    return Secrets(account=account, token=token, password=password)


def people(desk: Desk) -> list[dict[str, Any]]:
    """Return every account, without its secrets."""
    with desk.database.read() as connection:
        rows = connection.execute(select(db.accounts).order_by(db.accounts.c.key)).all()
    shown = ("id", "name", "role", "team")
    return [{**{name: getattr(row, name) for name in shown}, "closed": bool(row.disabled)} for row in rows]


def check_free(connection: Connection, name: str) -> None:
    if connection.execute(select(db.accounts.c.id).where(db.accounts.c.key == key_of(name))).first():
        raise InvalidInput(f"expected a name that no account has yet, got name={name!r}")


def of_no_officer(connection: Connection, number: int) -> Row[Any]:
    """Return the row of an analyst or a reader; an officer's is refused: one officer could then act as two."""
    row = connection.execute(select(db.accounts).where(db.accounts.c.id == number)).first()
    if row is None or row.role == Role.OFFICER:
        raise Refused("expected the account of an analyst or a reader; officers: sfumato desk user --help")
    return row


def by_name(connection: Connection, name: str) -> Row[Any]:
    """Return the row of an account, for the command line, which may know which accounts there are."""
    row = connection.execute(select(db.accounts).where(db.accounts.c.key == key_of(name))).first()
    if row is None:
        raise InvalidInput(f"expected the name of an account, got name={name!r}; sfumato desk user list")
    return row


def by_id(connection: Connection, number: int) -> Account | None:
    return _found(connection, db.accounts.c.id == number)


def by_subject(connection: Connection, subject: str) -> Account | None:
    return _found(connection, db.accounts.c.subject == subject)


def _found(connection: Connection, condition: ColumnElement[bool]) -> Account | None:
    """Return the open account that fits."""
    row = connection.execute(select(db.accounts).where(condition, db.accounts.c.disabled.is_(False))).first()
    return None if row is None else account_of(row)


def account_of(row: Row[Any], grant: int | None = None) -> Account:
    return Account(id=row.id, name=row.name, role=Role(row.role), team=row.team, grant=grant, epoch=row.epoch)


def names(connection: Connection) -> dict[int, str]:
    return {row.id: row.name for row in connection.execute(select(db.accounts.c.id, db.accounts.c.name))}


# Passwords


def fresh_password() -> str:
    return secrets.token_urlsafe(15)


def hashed(password: str) -> str:
    """Return the hash of a new password; it takes some time, so no transaction may wait for it."""
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise InvalidInput(
            f"expected a password of {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} letters, got {len(password)}"
        )
    return _HASHER.hash(password)


def signs_in(
    database: Database,
    tries: Tries,
    name: str,
    password: str,
    *,
    browser: str | None = None,
    counted_as: str | None = None,
) -> tuple[Account, str] | None:
    """Return the account of a name and password, and a mark for its browser; an unknown name takes as long.

    A try is counted before the password is compared, and given back if it was right. A browser with a mark of
    the account has tries of its own, which no stranger can use up.

    `browser` is the mark that the browser sent; `counted_as` the key under which the try counts, by default
    that of the name.

    Raises:
        Crowded: If there were too many wrong passwords.
    """
    try:
        key = key_of(name)
    except InvalidInput:
        key = ""
    with database.read() as connection:
        row = connection.execute(select(db.accounts).where(db.accounts.c.key == key)).first()
    known = row is not None and row.password is not None and not row.disabled
    stored = row.password if row is not None and known else _decoy()
    if counted_as is None:
        seen = (browser or "").partition(".")[0]
        marked = hmac.compare_digest((browser or "").encode(), _mark(stored, seen).encode())
        counted_as = f"{key}\n{seen}" if marked else key  # no name has a line's end
    wait = tries.reserve(counted_as)
    if wait:
        sentence = f"too many wrong passwords for this name; wait {math.ceil(wait)} s and try again"
        raise Crowded(sentence, seconds=wait)
    fits = _verified(stored, password[:LONGEST_PASSWORD])
    if row is None or not known or not fits:
        return None
    tries.succeeded(counted_as)
    return account_of(row), _mark(stored, secrets.token_urlsafe(16))


def _mark(stored: str, browser: str) -> str:
    """Return a mark for a browser that only this desk can make; a new password makes it worthless."""
    return f"{browser}.{hmac.new(stored.encode(), browser.encode(), hashlib.sha256).hexdigest()}"


@cache
def _decoy() -> str:
    return _HASHER.hash(secrets.token_urlsafe(32))


def _verified(stored: str, password: str) -> bool:
    try:
        return _HASHER.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False


def set_password(connection: Connection, number: int, stored: str, *, epoch: int | None = None) -> bool:
    """Set the hash of a new password, and end the account's sessions and tokens.

    With `epoch`, that in which the old password was verified, nothing changes if the account has another by
    now, and False is returned.
    """
    return _change(connection, number, epoch, password=stored)


def close(connection: Connection, number: int, *, disabled: bool = True) -> None:
    """Close an account with its sessions and tokens, or open it again without them."""
    _change(connection, number, disabled=disabled)


def _change(connection: Connection, number: int, epoch: int | None = None, **values: Any) -> bool:
    """Begin another epoch of an account: everything that was verified in an earlier one is over."""
    mine = (db.accounts.c.id == number) & (true() if epoch is None else db.accounts.c.epoch == epoch)
    change = db.accounts.update().where(mine).values(**values, epoch=db.accounts.c.epoch + 1)
    return bool(connection.execute(change).rowcount)


def of_now(table: Table) -> ColumnElement[bool]:
    """Return the condition that a session or token is of its account's epoch, and the account open."""
    return (table.c.epoch == db.accounts.c.epoch) & db.accounts.c.disabled.is_(False)


# Tokens


def digest_of(secret: str) -> bytes:
    """Return the digest that the database keeps of a token or a session: 32 random bytes need no slow hash."""
    return hashlib.sha256(secret.encode()).digest()


def add_token(connection: Connection, account: Account, *, purpose: str, grant: int | None) -> str:
    """Return a new token for programs, which is shown once."""
    token = "sfd_" + secrets.token_urlsafe(32)
    values = {"account": account.id, "digest": digest_of(token), "grant": grant, "epoch": account.epoch}
    purpose = checked_line("purpose", purpose)
    connection.execute(db.tokens.insert().values(**values, purpose=purpose, created=time.time()))
    return token


def by_token(connection: Connection, token: str) -> Account | None:
    """Return the account of a token, with the allocation that the token spends."""
    of_account = db.tokens.c.account == db.accounts.c.id
    mine = (db.tokens.c.digest == digest_of(token)) & db.tokens.c.revoked.is_(False)
    query = select(db.accounts, db.tokens.c.grant).join(db.tokens, of_account)
    found = connection.execute(query.where(mine, of_now(db.tokens))).first()
    return None if found is None else account_of(found, found.grant)


# Sessions


@dataclass(frozen=True, kw_only=True)
class Session:
    """A signed-in account, and the word that its forms must carry."""

    account: Account
    csrf: str


def begin_session(connection: Connection, account: Account, *, before: str | None) -> str:
    """Return the secret of a new session; the one that the browser had before, even a planted one, is over."""
    if before:
        end_session(connection, before)
    secret, now = secrets.token_urlsafe(32), time.time()
    old = (db.sessions.c.seen < now - IDLE) | (db.sessions.c.created < now - LONGEST)
    connection.execute(db.sessions.delete().where(old))
    values = {"digest": digest_of(secret), "account": account.id, "csrf": secrets.token_urlsafe(24)}
    connection.execute(db.sessions.insert().values(**values, epoch=account.epoch, created=now, seen=now))
    return secret


def end_session(connection: Connection, secret: str) -> None:
    connection.execute(db.sessions.delete().where(db.sessions.c.digest == digest_of(secret)))


def find_session(database: Database, secret: str, *, asleep: bool = False) -> Session | None:
    """Return the session of a cookie, unless it is over or the account is closed.

    `asleep` marks the request of a page that refreshes itself: it does not keep the session going.
    """
    now, digest = time.time(), digest_of(secret)
    with database.read() as connection:
        row = connection.execute(
            select(db.accounts, db.sessions.c.csrf, db.sessions.c.seen)
            .join(db.sessions, db.sessions.c.account == db.accounts.c.id)
            .where(db.sessions.c.digest == digest, of_now(db.sessions))
            .where(db.sessions.c.seen > now - IDLE, db.sessions.c.created > now - LONGEST)
        ).first()
    if row is None:
        return None
    if not asleep and row.seen < now - _SEEN_EVERY:
        with database.write() as connection:
            connection.execute(db.sessions.update().where(db.sessions.c.digest == digest).values(seen=now))
    return Session(account=account_of(row), csrf=row.csrf)


class Visits:
    """Words for forms of visitors who are not signed in: only this server can make the word of a cookie.

    Without it another site could sign a visitor in to another account, and read the questions asked there.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def word(self, visit: str) -> str:
        return hmac.new(self._key, visit.encode(), hashlib.sha256).hexdigest()

    def fits(self, visit: str | None, word: str | None) -> bool:
        mine = self.word(visit or "")
        return bool(visit and word) and hmac.compare_digest(mine.encode(), (word or "").encode())
