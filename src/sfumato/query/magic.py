"""Questions in a notebook: `%load_ext sfumato.query.magic`, and then

    %%sfumato people.toml --epsilon 0.1
    SELECT city, AVG(age) AS age FROM people GROUP BY city

shows the answer with its intervals. `--into name` keeps it in a variable, `--dry-run` says how wrong it would
be and spends nothing, `--again` gives an answer that was paid for again.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, NoReturn

from sfumato.errors import InvalidInput
from sfumato.policy import load_policy
from sfumato.query.answer import Answer, KeptAnswers, open_ledger
from sfumato.query.dry_run import ExpectedError
from sfumato.query.table import Table


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidInput(f"expected %%sfumato POLICY.toml --epsilon 0.1 above a query: {message}")


def load_ipython_extension(shell: Any) -> None:
    """Register the magic, as `%load_ext sfumato.query.magic` asks."""

    def sfumato(line: str, cell: str) -> Answer | tuple[ExpectedError, ...]:
        """Answer the query in a cell for a share of its policy's budget."""
        words = _parser().parse_args(shlex.split(line))
        found = _asked(words, cell)
        if words.into is not None:
            shell.user_ns[words.into] = found
        return found

    shell.register_magic_function(sfumato, magic_kind="cell", magic_name="sfumato")


def _parser() -> _Words:
    words = _Words(prog="%%sfumato", add_help=False, allow_abbrev=False)
    words.add_argument("policy", type=Path)
    words.add_argument("--epsilon", type=float, required=True)
    words.add_argument("--delta", type=float)
    words.add_argument("--dry-run", action="store_true")
    words.add_argument("--again", action="store_true")
    words.add_argument("--into")
    return words


def _asked(words: argparse.Namespace, sql: str) -> Answer | tuple[ExpectedError, ...]:
    policy = load_policy(words.policy)
    with open_ledger(policy, words.policy) as ledger:
        table = Table(policy, ledger, kept=KeptAnswers.of(policy, words.policy))
        if words.dry_run:
            return table.dry_run(sql, epsilon=words.epsilon, delta=words.delta)
        return table.ask(sql, epsilon=words.epsilon, delta=words.delta, again=words.again)
