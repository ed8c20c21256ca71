"""Signed in by browser: a random secret in a cookie, its digest in the database, fresh at every sign-in."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass

from sqlalchemy import Connection, select

from sfumato.desk import database as db
from sfumato.desk.accounts import Account, account_of, digest_of, of_now
from sfumato.desk.database import Database

IDLE, LONGEST = 30 * 60.0, 12 * 3600.0
"""Seconds after which somebody must sign in again: since the last request, and in all."""
COOKIE, VISIT = "desk_session", "desk_visit"
_SEEN_EVERY = 60.0  # seconds between writes of the last request's time


@dataclass(frozen=True, kw_only=True)
class Session:
    """Somebody who is signed in, and the word that their forms must carry."""

    account: Account
    csrf: str


def begin(connection: Connection, account: Account, *, before: str | None) -> str:
    """A new session; what the browser had before, even if somebody put it there, is worth nothing."""
    if before:
        end(connection, before)
    secret, now = secrets.token_urlsafe(32), time.time()
    old = (db.sessions.c.seen < now - IDLE) | (db.sessions.c.created < now - LONGEST)
    connection.execute(db.sessions.delete().where(old))
    values = {"digest": digest_of(secret), "account": account.id, "csrf": secrets.token_urlsafe(24)}
    connection.execute(db.sessions.insert().values(**values, epoch=account.epoch, created=now, seen=now))
    return secret


def end(connection: Connection, secret: str) -> None:
    connection.execute(db.sessions.delete().where(db.sessions.c.digest == digest_of(secret)))


def find(database: Database, secret: str, *, asleep: bool = False) -> Session | None:
    """The session of a cookie, unless it is over or the account is closed.

    A page that refreshes itself, with nobody before it, does not keep the session going.
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
    """Forms of people who are not signed in yet: a cookie, and a word that only this server can make of it.

    Without it another site could sign somebody in as another, and read what they ask there.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def word(self, visit: str) -> str:
        return hmac.new(self._key, visit.encode(), hashlib.sha256).hexdigest()

    def fits(self, visit: str | None, word: str | None) -> bool:
        return bool(visit and word) and hmac.compare_digest(
            self.word(visit or "").encode(), (word or "").encode()
        )
