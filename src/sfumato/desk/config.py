"""What desk.toml says: which policies are served, where the desk keeps its own facts, how often it answers.

policies = ["people.toml"]           # files beside this one, or elsewhere
database = "desk.db"                 # or a postgresql:// address
tick = 1                             # seconds; answers leave at whole ticks
address = "https://desk.example.org" # how browsers reach it, needed for [openid]; https makes cookies secure
name = "Statistics desk"             # optional: the title of the pages
runs = "desk-runs"                   # optional: the folder of what jobs release
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
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget
from sfumato.desk.image_jobs import SOURCES
from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy, load_policy

_KEYS = ("policies", "database", "tick", "address", "name", "runs", "proxies", "openid", "images")
_POSTGRES = ("postgresql://", "postgres://")


@dataclass(frozen=True, kw_only=True)
class OpenId:
    """A provider that says who somebody is.

    Args:
        issuer: Its address; what it offers is read from there.
        client: The name under which the desk is known to it.
        secret: The desk's secret there.
    """

    issuer: str
    client: str
    secret: str

    def __post_init__(self) -> None:
        local = self.issuer.startswith(("http://127.0.0.1", "http://localhost"))
        if not (self.issuer.startswith("https://") or local):
            raise InvalidInput(f"expected openid.issuer to begin with https://, got {self.issuer!r}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The desk as its file declares it.

    Args:
        place: The file itself.
        policies: The policy of each file, by the file; of images, by the file that would hold it.
        database: An SQLAlchemy address.
        tick: Seconds between answers.
        address: How browsers reach the desk; None for this machine only.
        name: The title of the pages.
        runs: The folder of what jobs release.
        proxies: Addresses or networks of servers in front of the desk, which say whom they ask for.
        openid: A provider for signing in.
        images: The names of those that are images, of which jobs are made and nothing is asked.
    """

    place: Path
    policies: Mapping[Path, Policy]
    database: str
    tick: float = 1.0
    address: str | None = None
    name: str = "Sfumato desk"
    runs: Path = Path("desk-runs")
    proxies: tuple[str, ...] = ()
    openid: OpenId | None = None
    images: frozenset[str] = frozenset()

    @property
    def secure(self) -> bool:
        """Whether browsers reach it by https, so that cookies may be sent that way alone."""
        return self.address is not None and self.address.startswith("https://")


def load_settings(path: str | Path) -> Settings:
    """Read desk.toml; whatever is unknown in it is refused.

    Args:
        path: The file. Places in it are beside it.

    Returns:
        The settings.

    Raises:
        InvalidInput: If something is missing, unknown or out of its range.
    """
    place = Path(path).absolute()
    try:
        data = tomllib.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"expected the desk's settings at {path}: {error.strerror or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"expected {path} to be TOML: {error}") from error
    _refuse_unknown(data, _KEYS, "desk.toml")
    if "openid" in data:
        _needed(data, "address")  # where the provider sends people back to: no request says that
    folder = place.parent
    return Settings(
        place=place,
        policies=_policies(data, folder),
        images=frozenset(data.get("images", {})),
        database=_address_of(str(_needed(data, "database")), folder),
        tick=_validate.positive("tick", data.get("tick", 1.0)),
        address=None if "address" not in data else str(data["address"]).rstrip("/"),
        name=str(data.get("name", "Sfumato desk")),
        runs=folder / str(data.get("runs", "desk-runs")),
        proxies=_proxies(data.get("proxies", [])),
        openid=None if "openid" not in data else _openid(data["openid"], folder),
    )


def _policies(data: Mapping[str, Any], folder: Path) -> dict[Path, Policy]:
    names = _needed(data, "policies")
    if not isinstance(names, list) or not names:
        raise InvalidInput('expected policies to be a list of files, such as policies = ["people.toml"]')
    found = {folder / str(name): load_policy(folder / str(name)) for name in names}
    images = data.get("images", {})
    if not isinstance(images, dict):
        raise InvalidInput("expected a section [images.NAME] for each set of images")
    for name, section in images.items():
        place = folder / f"{name}.toml"  # its ledger is beside it, as a table's is
        if place in found:
            raise InvalidInput(f"expected a name for [images.{name}] that no policy's file has; rename one")
        found[place] = _images(name, section, folder)
    tables = [table.lower() for policy in found.values() for table in policy.private_names]
    if len(set(tables)) < len(tables):
        raise InvalidInput(f"expected tables whose names differ, got {', '.join(sorted(tables))}; rename one")
    return found


def _images(name: str, section: Any, folder: Path) -> Policy:
    """What is declared about images: no column of them can be asked about, so that one stands for all."""
    where = f"[images.{name}]"
    if not isinstance(section, dict) or not name.replace("-", "_").isidentifier():
        raise InvalidInput(
            f"expected a section {where}, its name a word, with source, public_size, epsilon, delta"
        )
    known = ("source", "public_size", "epsilon", "delta", "ledger", "four_eyes")
    _refuse_unknown(section, known, where)
    ledger = None if "ledger" not in section else str(section["ledger"])
    if ledger is not None and "://" not in ledger:
        ledger = str(folder / ledger)
    return Policy(
        table=name,
        source=_validate.one_of(f"{where} source", str(_needed(section, "source")), SOURCES),
        columns={"label": Column(name="label", type="integer")},
        budget=Budget(epsilon=_needed(section, "epsilon"), delta=_needed(section, "delta")),
        public_size=_validate.integer("public_size", _needed(section, "public_size"), least=4),
        ledger=ledger,
        four_eyes=_validate.truth(f"{where} four_eyes", section.get("four_eyes", False)),
    )


def _address_of(database: str, folder: Path) -> str:
    for prefix in _POSTGRES:
        if database.startswith(prefix):
            return "postgresql+psycopg://" + database.removeprefix(prefix)
    if "://" in database:
        raise InvalidInput('expected database to be a file or a postgresql:// address, such as "desk.db"')
    return f"sqlite:///{folder / database}"


def _proxies(given: Any) -> tuple[str, ...]:
    """Every one is an address: a name, or a star for all, would let anybody say where they come from."""
    try:
        return tuple(
            str(ipaddress.ip_network(one)).removesuffix("/32").removesuffix("/128") for one in [*given]
        )
    except (TypeError, ValueError):
        raise InvalidInput(
            f'expected proxies to be a list of addresses or networks, such as ["127.0.0.1"], got {given!r}'
        ) from None


def _openid(section: Any, folder: Path) -> OpenId:
    if not isinstance(section, dict):
        raise InvalidInput("expected a section [openid] with issuer, client and secret")
    _refuse_unknown(section, ("issuer", "client", "secret", "secret_file"), "[openid]")
    secret = section.get("secret")
    if secret is None:
        secret = (folder / str(_needed(section, "secret_file"))).read_text(encoding="utf-8").strip()
    issuer, client = str(_needed(section, "issuer")), str(_needed(section, "client"))
    return OpenId(issuer=issuer.rstrip("/"), client=client, secret=str(secret))


def _needed(data: Mapping[str, Any], key: str) -> Any:
    if key not in data:
        raise InvalidInput(f"expected {key} in the desk's settings, got none; add a line {key} = …")
    return data[key]


def _refuse_unknown(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise InvalidInput(f"expected only {', '.join(known)} in {where}, got {', '.join(unknown)}")
