"""`sfumato serve` and `sfumato desk`: a web application over the ledger, and the people who may use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato import interruption
from sfumato.cli import show
from sfumato.errors import LedgerError, MissingExtra

if TYPE_CHECKING:
    from sfumato.desk.desk import Desk

Config = Annotated[Path, typer.Option("--config", help="The desk's settings, a TOML file.")]
Name = Annotated[str, typer.Argument(help="The name to sign in with.")]

_USERS = """Add, list and close accounts.

Example: sfumato desk user add ann --role analyst --config desk.toml"""


def register(app: typer.Typer) -> None:
    app.command()(serve)
    group = typer.Typer(
        help="Manage the people of a desk, and check its trail.", callback=_need_extra, no_args_is_help=True
    )
    users = typer.Typer(help=_USERS, no_args_is_help=True)
    for name, command in (("add", add), ("list", list_), ("password", password), ("close", close)):
        users.command(name)(command)
    group.add_typer(users, name="user")
    group.command("verify")(verify)
    app.add_typer(group, name="desk")


def serve(
    config: Annotated[Path, typer.Argument(help="The desk's settings, a TOML file.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 for any that is free.")] = 8000,
    jobs: Annotated[bool, typer.Option("--jobs/--no-jobs", help="Run jobs in a process beside it.")] = True,
    example: Annotated[
        bool,
        typer.Option("--example", help="Write example data and settings there first, if there are none."),
    ] = False,
    json: show.Json = False,
) -> None:
    """Serve the desk: ask, approve, plan and show in a browser.

    Put a server that speaks https in front of it before others can reach it.

    Example: sfumato serve desk.toml --port 8000
    """
    _need_extra()
    from sfumato.desk.example import make_example
    from sfumato.desk.server import serve as run

    made = make_example(config) if example and not config.exists() else []

    def ready(found: int) -> None:
        address = f"http://{host}:{found}"
        lines = [f"{one.account.role}: sign in as {one.account.name} with {one.password}" for one in made]
        told = "\n".join([*lines, f"The desk is at {address}. Ctrl-C stops it."])
        _tell(json, {"address": address, "passwords": {one.account.name: one.password for one in made}}, told)

    interruption.offer("jobs go on at no further charge when the desk is up again")
    run(config, host=host, port=port, ready=ready, jobs=jobs)


def add(
    name: Name,
    role: Annotated[str, typer.Option(help="officer, analyst or reader.")],
    config: Config,
    allocation: Annotated[
        float | None, typer.Option(help="Set this ε of the budget aside for the account's team.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="The team. Default: a team of one.")] = None,
    purpose: Annotated[str, typer.Option(help="Purpose of the token and the allocation.")] = "questions",
    period: Annotated[
        str, typer.Option(help="once, month, quarter or year: how often the allocation is set aside.")
    ] = "once",
    periods: Annotated[int, typer.Option(help="Number of periods, from this one on.")] = 1,
    table: Annotated[
        str | None, typer.Option(help="The table of the allocation, where a desk has several.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="The account's subject at the OpenID provider, to sign in there.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Add an account. Its password and its token for the API are shown once.

    Example: sfumato desk user add ann --role analyst --allocation 1 --config desk.toml
    """
    from sfumato.desk.accounts import add_person
    from sfumato.desk.grants import Wanted

    wanted = None
    if allocation is not None:
        wanted = Wanted(team=team or name, purpose=purpose, epsilon=allocation, period=period, periods=periods)
    with _opened(config) as desk:
        made = add_person(
            desk, name, role=role, team=team, purpose=purpose, wanted=wanted, table=table, subject=subject
        )
        _noted(desk, "user add", f"{made.account.name}, {made.account.role}")
    told = f"Added {made.account.name}, {made.account.role}. Shown once:"
    told += f"\n  password  {made.password}\n  token     {made.token}"
    _tell(json, {"name": made.account.name, "token": made.token, "password": made.password}, told)


def list_(config: Config, json: show.Json = False) -> None:
    """List the accounts.

    Example: sfumato desk user list --config desk.toml
    """
    from sfumato.desk.accounts import people

    with _opened(config) as desk:
        found = people(desk)
    lines = [f"{one['name']}  {one['role']}  {one['team']}{'  closed' * one['closed']}" for one in found]
    _tell(json, {"accounts": found}, "\n".join(lines))


def password(name: Name, config: Config, json: show.Json = False) -> None:
    """Give an account a new password, shown once; its sessions and tokens end.

    Example: sfumato desk user password ann --config desk.toml
    """
    from sfumato.desk import accounts

    fresh = accounts.fresh_password()
    stored = accounts.hashed(fresh)
    with _opened(config) as desk, desk.database.write() as connection:
        accounts.set_password(connection, accounts.by_name(connection, name).id, stored)
        _noted(desk, "user password", name)
    _tell(json, {"name": name, "password": fresh}, f"New password of {name}, shown once: {fresh}")


def close(name: Name, config: Config, json: show.Json = False) -> None:
    """Close an account: its sessions and tokens end.

    Example: sfumato desk user close ann --config desk.toml
    """
    from sfumato.desk import accounts

    with _opened(config) as desk, desk.database.write() as connection:
        accounts.close(connection, accounts.by_name(connection, name).id)
        _noted(desk, "user close", name)
    _tell(json, {"name": name, "closed": True}, f"Closed {name}.")


def verify(config: Config, json: show.Json = False) -> None:
    """Check the chain of the desk's trail, and the ledgers of its policies.

    Example: sfumato desk verify --config desk.toml
    """
    from sfumato.desk import trail

    with _opened(config) as desk:
        lines = sum(1 for _ in trail.entries(desk.database))
        if desk.aside:
            raise LedgerError("expected ledgers that can be opened; " + "; ".join(set(desk.aside.values())))
        heads = {dataset.name: dataset.ledger.verify().to_json() for dataset in desk.each()}
    told = f"All holds: {lines} requests in the trail, {len(heads)} of {len(heads)} ledgers."
    _tell(json, {"valid": True, "requests": lines, "heads": heads}, told)


def _tell(json: bool, answer: dict[str, Any], words: str) -> None:
    if json:
        show.emit_json(answer)
    else:
        show.console.print(words, markup=False)


def _noted(desk: Desk, act: str, account: str) -> None:
    """Add a line to the trail: the officers see the acts of the command line."""
    from sfumato.desk import trail

    trail.noted(desk.database, "the command line", act, account, "done")


def _need_extra() -> None:
    try:
        import argon2  # noqa: F401
        import authlib  # noqa: F401
        import fastapi  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(package=error.name or "fastapi", extra="desk") from error


def _opened(config: Path) -> Any:
    """Return the desk of a settings file, closed at the end of a block."""
    from contextlib import closing

    from sfumato.desk.desk import Desk

    desk: Desk = Desk.open(config)
    return closing(desk)
