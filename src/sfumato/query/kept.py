"""Answers that were paid for, kept so that the same question can be answered again for nothing.

An answer is found by what was declared: the question's words, the policy (its data version with it), ε and δ.
Nothing of the data takes part, and no digest of it: whoever changes the data says so in `version`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import sqlglot

from sfumato.errors import InvalidInput
from sfumato.policy import Policy, PublicTable
from sfumato.query.answer import Answer
from sfumato.query.opening import ledger_place
from sfumato.storage import write_whole

Declared = TypeVar("Declared", Policy, PublicTable)
_private_log = logging.getLogger("sfumato.private.query")


class KeptAnswers:
    """A folder of answers that its owner alone may read; what is in it was released before.

    Args:
        folder: Where answers are kept; made when the first is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     KeptAnswers(folder).find("never asked") is None
    True
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.has_kept = False  # whether this object wrote one down

    @classmethod
    def of(cls, policy: Policy, place: Path) -> KeptAnswers:
        """Beside the ledger's file, or beside the policy's where the ledger is on a server."""
        ledger = ledger_place(policy, place)
        return cls(f"{place if '://' in ledger else ledger}.answers")

    def find(self, name: str) -> Answer | None:
        """The answer under a name, as it was given."""
        try:
            data = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            return replace(Answer.from_json(data), again=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"expected an answer in {self.folder / name}.json, got something else; remove the file"
            ) from error

    def keep(self, name: str, answer: Answer) -> None:
        """Write an answer down; it has been paid for, so that a full disk must not lose it to the asker."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.folder.is_symlink():
                raise NotADirectoryError(f"expected a folder of its own at {self.folder}, got a link")
            self.folder.chmod(0o700)
            text = json.dumps(answer.to_json(), ensure_ascii=False, default=str)
            write_whole(self.folder / f"{name}.json", text.encode())
            self.has_kept = True
        except OSError as error:
            _private_log.error("an answer could not be kept", exc_info=error)


def name_of(
    sql: str,
    policy: Policy,
    *,
    epsilon: float,
    delta: float | None,
    split: tuple[float, ...] | None = None,
    noise: str | None = None,
) -> str:
    """What a question is kept under: its words, without spaces and comments, and all that is declared."""
    declared = replace(
        _from_anywhere(policy),
        tables={name: _from_anywhere(one) for name, one in policy.tables.items()},
        public={name: _from_anywhere(one) for name, one in policy.public.items()},
        ledger=None,
    )
    asked = (words_of(sql), declared, float(epsilon), delta, split, noise)
    return hashlib.sha256(repr(asked).encode()).hexdigest()


def _from_anywhere(table: Declared) -> Declared:
    """The same from whatever folder it is asked."""
    return replace(table, source=table.source if "://" in table.source else os.path.abspath(table.source))


def words_of(sql: str) -> str:
    """A question in one spelling.

    >>> words_of("select  count( * ) -- of all\\n from people;") == words_of("SELECT COUNT(*) FROM people")
    True
    """
    return sqlglot.parse_one(sql, read="duckdb").sql(dialect="duckdb", comments=False)


def check_version(policy: Policy) -> None:
    if policy.version is None:
        raise InvalidInput(
            "expected version in the policy's [table] to give an answer again, got none; declare one and "
            "change it whenever the data change"
        )
