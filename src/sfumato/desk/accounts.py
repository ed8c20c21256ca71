"""Who may do what: accounts with a role and a team, passwords by argon2, API tokens by their digest."""

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
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import ColumnElement, Connection, Row, Table, func, select, true

from sfumato import _validate
from sfumato.desk import database as db
from sfumato.desk.database import Database
from sfumato.desk.throttle import Crowded, Tries
from sfumato.errors import InvalidInput, Refused

LONGEST_NAME = 64
SHORTEST_PASSWORD, LONGEST_PASSWORD = 12, 256
_HASHER = PasswordHasher()  # argon2id with RFC 9106's second recommended setting


class Role(StrEnum):
    """An officer answers for the budget, an analyst spends an allocation, a reader sees what is public."""

    OFFICER = "officer"
    ANALYST = "analyst"
    READER = "reader"


@dataclass(frozen=True, kw_only=True)
class Account:
    """Somebody who may sign in.

    Attributes:
        id: The number in the database.
        name: As it is shown.
        role: What they may do.
        team: Whose allocations and questions they share.
        grant: The allocation that their API token is for, if they came with one.
        epoch: Of the account when its password was verified: sessions and tokens of another one are over.
    """

    id: int
    name: str
    role: Role
    team: str
    grant: int | None = None
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """What a new account is told once; the database keeps digests only."""

    account: Account
    token: str
    password: str


def checked_name(name: str, what: str = "name") -> str:
    """A name as it is kept: one spelling of it, printable, no longer than others can read.

    >>> checked_name(" Ａnn ")
    'Ann'
    """
    clean = unicodedata.normalize("NFKC", name).strip()
    if not clean or len(clean) > LONGEST_NAME or not clean.isprintable():
        raise InvalidInput(f"expected {what} to be 1 to {LONGEST_NAME} printable letters, got {clean[:80]!r}")
    return clean


def key_of(name: str) -> str:
    """The name as names are compared: no two accounts differ in case, width or accents' spelling alone."""
    return unicodedata.normalize("NFKC", checked_name(name).casefold())


def add(
    connection: Connection, name: str, *, role: str, team: str | None = None, stored: str | None = None
) -> Account:
    """Add an account, with the hash of its password; without one it cannot sign in."""
    name = checked_name(name)
    role = Role(_validate.one_of("role", role, [str(one) for one in Role]))
    team = checked_name(team or name, "team")
    check_free(connection, name)
    values = {"name": name, "key": key_of(name), "role": str(role), "team": team, "disabled": False}
    number = db.inserted(connection, db.accounts, **values, password=stored, created=time.time())
    return Account(id=number, name=name, role=role, team=team)


def check_free(connection: Connection, name: str) -> None:
    """Raise InvalidInput for the name of an account."""
    if connection.execute(select(db.accounts.c.id).where(db.accounts.c.key == key_of(name))).first():
        raise InvalidInput(f"expected a name that no account has yet, got name={name!r}")


def of_no_officer(connection: Connection, number: int) -> Row[tuple[object, ...]]:
    """The row of an analyst's or a reader's account; Refused for an officer's: one could then be two."""
    row = connection.execute(select(db.accounts).where(db.accounts.c.id == number)).first()
    if row is None or row.role == Role.OFFICER:
        raise Refused("expected the account of an analyst or a reader; officers: sfumato desk user --help")
    return row


def by_name(connection: Connection, name: str) -> Row[tuple[object, ...]]:
    """The row of an account, for those who may know that it is there."""
    row = connection.execute(select(db.accounts).where(db.accounts.c.key == key_of(name))).first()
    if row is None:
        raise InvalidInput(f"expected the name of an account, got name={name!r}; sfumato desk user list")
    return row


def by_id(connection: Connection, number: int) -> Account | None:
    """The account of a number, unless it was closed."""
    row = connection.execute(
        select(db.accounts).where(db.accounts.c.id == number, db.accounts.c.disabled.is_(False))
    ).first()
    return None if row is None else account_of(row)


def account_of(row: Row[tuple[object, ...]], grant: int | None = None) -> Account:
    kept = {"id": row.id, "name": row.name, "role": Role(row.role), "team": row.team}
    return Account(**kept, grant=grant, epoch=row.epoch or 0)


def names(connection: Connection) -> dict[int, str]:
    """The name of every account, by number."""
    return {row.id: row.name for row in connection.execute(select(db.accounts.c.id, db.accounts.c.name))}


# Passwords


def fresh_password() -> str:
    return secrets.token_urlsafe(15)


def checked_password(password: str) -> str:
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise InvalidInput(
            f"expected a password of {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} letters, got {len(password)}"
        )
    return password


def hashed(password: str) -> str:
    """Return the hash of a new password; it takes some time, so no transaction may wait for it."""
    return _HASHER.hash(checked_password(password))


def signs_in(
    database: Database,
    tries: Tries,
    name: str,
    password: str,
    *,
    browser: str | None = None,
    counted_as: str | None = None,
) -> tuple[Account, str] | None:
    """The account with this name and password, and a mark for its browser; an unknown name takes as long.

    The try is counted before the password is looked at, and given back if it was right. A browser with a mark
    of the account has tries of its own, which no stranger can use up.

    Args:
        database: The desk's.
        tries: Counts them.
        name: As it was given.
        password: Likewise.
        browser: The mark that the browser brought, if any.
        counted_as: The key under which the try counts; the account's by default.

    Raises:
        Crowded: If there were too many wrong ones.
    """
    try:
        key = key_of(name)
    except InvalidInput:
        key = ""
    with database.read() as connection:
        row = connection.execute(select(db.accounts).where(db.accounts.c.key == key)).first()
    known = row is not None and row.password is not None and not row.disabled
    stored = row.password if row is not None and known else _nobodys()
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
    """A mark that only this desk can make, of a browser by a random word; a new password makes it worthless."""
    return f"{browser}.{hmac.new(stored.encode(), browser.encode(), hashlib.sha256).hexdigest()}"


@cache
def _nobodys() -> str:
    return _HASHER.hash(secrets.token_urlsafe(32))


def _verified(stored: str, password: str) -> bool:
    try:
        return _HASHER.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False


def set_password(connection: Connection, number: int, stored: str, *, epoch: int | None = None) -> bool:
    """Set the hash of a new password, and end the account's sessions and tokens.

    Args:
        connection: A transaction.
        number: The account.
        stored: The hash.
        epoch: In which the old password was verified, if it was.

    Returns:
        False, and nothing is changed, if the account has another epoch by now.
    """
    return _change(connection, number, epoch, password=stored)


def close(connection: Connection, number: int, *, disabled: bool = True) -> None:
    """Close an account with its sessions and tokens, or open it again without them."""
    _change(connection, number, disabled=disabled)


def _change(connection: Connection, number: int, epoch: int | None = None, **values: Any) -> bool:
    """Begin another epoch of an account: what was verified in an earlier one is over, and stays so."""
    now = func.coalesce(db.accounts.c.epoch, 0)
    mine = (db.accounts.c.id == number) & (true() if epoch is None else now == epoch)
    return bool(connection.execute(db.accounts.update().where(mine).values(**values, epoch=now + 1)).rowcount)


def of_now(table: Table) -> ColumnElement[bool]:
    """Whether a session or token is of its account's epoch, and the account open."""
    same = func.coalesce(table.c.epoch, 0) == func.coalesce(db.accounts.c.epoch, 0)
    return same & db.accounts.c.disabled.is_(False)


# Tokens


def digest_of(secret: str) -> bytes:
    """What the database keeps of a token or a session: 32 random bytes need no slow hash."""
    return hashlib.sha256(secret.encode()).digest()


def add_token(connection: Connection, account: Account, *, purpose: str, grant: int | None) -> str:
    """A token for programs, told once."""
    token = "sfd_" + secrets.token_urlsafe(32)
    purpose = checked_line("purpose", purpose)
    values = {"account": account.id, "digest": digest_of(token), "purpose": purpose, "grant": grant}
    values |= {"epoch": account.epoch, "created": time.time(), "revoked": False}
    connection.execute(db.tokens.insert().values(**values))
    return token


def by_token(connection: Connection, token: str) -> Account | None:
    """Whose token it is, with the allocation it is for."""
    found = connection.execute(
        select(db.accounts, db.tokens.c.grant)
        .join(db.tokens, db.tokens.c.account == db.accounts.c.id)
        .where(
            db.tokens.c.digest == digest_of(token),
            db.tokens.c.revoked.is_(False),
            of_now(db.tokens),
        )
    ).first()
    return None if found is None else account_of(found, found.grant)


def checked_line(name: str, value: str, *, longest: int = 300) -> str:
    """One line of printable words, as the ledger takes them."""
    clean = unicodedata.normalize("NFC", " ".join(value.split()))
    if not clean or len(clean) > longest or not clean.isprintable():
        raise InvalidInput(f"expected {name} to be one line of 1 to {longest} letters, got {clean[:80]!r}")
    return clean
