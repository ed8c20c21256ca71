"""The settings of a desk, in desk.toml.

policies = ["people.toml"]           # files beside this one, or elsewhere
database = "desk.db"                 # or a postgresql:// address
tick = 1                             # seconds; answers leave at whole ticks
address = "https://desk.example.org" # how browsers reach it, needed for [openid]; https makes cookies secure
name = "Statistics desk"             # optional: the title of the pages
runs = "desk-runs"                   # optional: the folder of the files that jobs release
proxies = ["127.0.0.1"]              # optional: addresses whose X-Forwarded-For is believed

[openid]                             # optional: sign in with a provider
issuer = "https://login.example.org"
client = "desk"
secret = "…"                         # or secret_file = "openid.secret"

[images.digits]                      # optional: images for jobs, under a name of their own
source = "digits"                    # mnist, fashion-mnist, digits or strokes
public_size = 1500                   # the declared number of private images
epsilon = 4.0                        # of the budget
delta = 1e-5
ledger = "digits.ledger.db"          # optional, as in a policy
four_eyes = true                     # optional, as in a policy
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from sfumato.accounting import Budget
from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy, load_policy
from sfumato.schema import Delta, Model, Positive, Words, read, read_file

Source = Literal["digits", "fashion-mnist", "mnist", "strokes"]
SOURCES: tuple[str, ...] = get_args(Source)
_POSTGRES = ("postgresql://", "postgres://")


class _OpenId(Model):
    issuer: Words
    client: Words
    secret: Words | None = None
    secret_file: Words | None = None


class _Images(Model):
    source: Source
    public_size: Annotated[int, Meta(ge=4)]
    epsilon: Positive
    delta: Delta
    ledger: Words | None = None
    four_eyes: bool = False


class _File(Model):
    policies: Annotated[tuple[Words, ...], Meta(min_length=1, description="a list of files")]
    database: Words
    tick: Positive = 1.0
    address: Words | None = None
    name: Words = "Sfumato desk"
    runs: Words = "desk-runs"
    proxies: tuple[Words, ...] = ()
    openid: _OpenId | None = None
    images: dict[str, _Images] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OpenId:
    """An OpenID provider, and the desk's name and secret there."""

    issuer: str
    client: str
    secret: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a desk as in the file, with whole addresses and places.

    Policies are listed by their files, those of images by the file that would hold them.
    """

    place: Path
    policies: Mapping[Path, Policy]
    database: str
    tick: float
    address: str | None
    name: str
    runs: Path
    proxies: tuple[str, ...]
    openid: OpenId | None
    images: frozenset[str]

    @property
    def secure(self) -> bool:
        """Whether browsers reach it by https, so that cookies may be sent that way alone."""
        return self.address is not None and self.address.startswith("https://")


def load_settings(path: str | Path) -> Settings:
    """Read desk.toml; places in it are beside it.

    Raises:
        InvalidInput: If something is missing, unknown or out of its range.
    """
    place = Path(path).absolute()
    folder = place.parent
    try:
        found: _File = read(_File, read_file(place, "the desk's settings"), name="")
    except OSError as error:
        raise InvalidInput(f"expected the desk's settings at {path}: {error.strerror or error}") from error
    if found.openid is not None and found.address is None:  # no request says where the provider sends back to
        raise InvalidInput("expected address in the desk's settings with [openid], got none; add address = …")
    return Settings(
        place=place,
        policies=_policies(found, folder),
        database=_address_of(found.database, folder),
        tick=found.tick,
        address=None if found.address is None else found.address.rstrip("/"),
        name=found.name,
        runs=folder / found.runs,
        proxies=_proxies(found.proxies),
        openid=None if found.openid is None else _openid(found.openid, folder),
        images=frozenset(found.images),
    )


def _policies(found: _File, folder: Path) -> dict[Path, Policy]:
    policies = {folder / name: load_policy(folder / name) for name in found.policies}
    for name, section in found.images.items():
        place = folder / f"{name}.toml"  # its ledger is beside it, as a table's is
        if place in policies or not name.replace("-", "_").isidentifier():
            raise InvalidInput(f"expected a word for [images.{name}] that no policy's file has; rename it")
        policies[place] = _images(name, section, folder)
    tables = [table.lower() for policy in policies.values() for table in policy.private_names]
    if len(set(tables)) < len(tables):
        raise InvalidInput(f"expected tables whose names differ, got {', '.join(sorted(tables))}; rename one")
    return policies


def _images(name: str, section: _Images, folder: Path) -> Policy:
    """Return the policy of images: one column stands for all, as no question can name any."""
    ledger = section.ledger
    return Policy(
        table=name,
        source=section.source,
        columns={"label": Column(name="label", type="integer")},
        budget=Budget(epsilon=section.epsilon, delta=section.delta),
        public_size=section.public_size,
        ledger=ledger if ledger is None or "://" in ledger else str(folder / ledger),
        four_eyes=section.four_eyes,
    )


def _address_of(database: str, folder: Path) -> str:
    for prefix in _POSTGRES:
        if database.startswith(prefix):
            return "postgresql+psycopg://" + database.removeprefix(prefix)
    if "://" in database:
        raise InvalidInput('expected database to be a file or a postgresql:// address, such as "desk.db"')
    return f"sqlite:///{folder / database}"


def _proxies(given: tuple[str, ...]) -> tuple[str, ...]:
    """Each must be an address: with a name, or a star for all, visitors could state where they come from."""
    try:
        return tuple(str(ipaddress.ip_network(one)).removesuffix("/32").removesuffix("/128") for one in given)
    except ValueError:
        raise InvalidInput(
            f'expected proxies to be a list of addresses or networks, such as ["127.0.0.1"], got {given!r}'
        ) from None


def _openid(section: _OpenId, folder: Path) -> OpenId:
    local = section.issuer.startswith(("http://127.0.0.1", "http://localhost"))
    if not (section.issuer.startswith("https://") or local):
        raise InvalidInput(f"expected openid.issuer to begin with https://, got {section.issuer!r}")
    if (section.secret is None) == (section.secret_file is None):
        raise InvalidInput("expected in [openid] either secret or secret_file; leave the other out")
    secret = section.secret or (folder / str(section.secret_file)).read_text(encoding="utf-8").strip()
    return OpenId(issuer=section.issuer.rstrip("/"), client=section.client, secret=secret)
