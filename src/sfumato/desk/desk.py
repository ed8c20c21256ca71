"""Everything that a running desk holds."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from sfumato.desk import acts, grants, trail
from sfumato.desk import database as db
from sfumato.desk.config import Settings, load_settings
from sfumato.desk.database import Database
from sfumato.desk.datasets import MOST_WAITING, Dataset, open_datasets
from sfumato.desk.pace import Pace
from sfumato.desk.sessions import Visits
from sfumato.desk.throttle import Buckets, Effort, Tries, Turns
from sfumato.display import visible
from sfumato.errors import InvalidInput

REQUESTS_AT_ONCE, REQUESTS_A_SECOND = 120, 4.0


@dataclass
class Desk:
    """Settings, the desk's database, the data sets with their ledgers, and the limits."""

    settings: Settings
    database: Database
    datasets: dict[str, Dataset]
    aside: dict[str, str]  # why the others are not served, by table
    pace: Pace
    tries: Tries
    buckets: Buckets = field(default_factory=lambda: Buckets(size=REQUESTS_AT_ONCE, rate=REQUESTS_A_SECOND))
    strangers: Buckets = field(default_factory=lambda: Buckets(size=60, rate=1.0))
    guesses: Buckets = field(default_factory=lambda: Buckets(size=60, rate=1.0))
    visitors: Buckets = field(default_factory=lambda: Buckets(size=300, rate=10.0))
    arrivals: Buckets = field(default_factory=lambda: Buckets(size=3000, rate=100.0))
    effort: Effort = field(default_factory=lambda: Effort(size=60.0, rate=0.1))
    planning: Turns = field(default_factory=lambda: Turns(at_once=2, of_one=MOST_WAITING))
    showing: Turns = field(default_factory=lambda: Turns(at_once=2, of_one=6))
    visits: Visits = field(default_factory=Visits)
    counted: trail.Counted = field(init=False)

    def __post_init__(self) -> None:
        self.counted = trail.Counted(self.database)

    @classmethod
    def open(cls, place: str | Path) -> Desk:
        """The desk of a settings file."""
        settings = load_settings(place)
        database = Database(settings.database)
        with database.read() as connection:
            known = set(connection.execute(select(db.shares.c.dataset).where(db.shares.c.made)).scalars())
        datasets, aside = open_datasets(settings.policies, settings.images, known=known)
        return cls(settings, database, datasets, aside, Pace(database, settings.tick), Tries(database))

    def finish(self) -> None:
        """Do what a crash left, and set aside what cannot be; for the server alone, when it starts.

        Each finding is told on standard error and in the trail. None of them keeps the desk from starting.

        Raises:
            Refused: If another server has the desk.
        """
        self.database.lease()
        said = [
            *dict.fromkeys(self.aside.values()),
            *self.database.mend_references(),
            *acts.finish(self.database),
        ]
        for dataset in self.each():
            try:
                said += grants.finish(self, dataset)
            except Exception as error:
                said.append(f"the allocations of {dataset.name} could not be compared with the ledger: {error}")
        for one in said:
            print(f"sfumato: {visible(one)}", file=sys.stderr)
            line: dict[str, Any] = {"who": "the desk", "role": None, "method": "start", "route": one}
            trail.record(self.database, **line, numbers={}, status="found").result()

    def four_eyes(self, dataset: str | None) -> bool:
        """Whether two officers must agree to an act on a data set, or to one that may concern any of them.

        Two policies may have one ledger: what the one asks for holds for the other. The ledger of a policy that
        is not served may be any.
        """
        chosen = None if dataset is None else self.dataset(dataset).ledger.id
        asking = (one.private_names[0].lower() for one in self.settings.policies.values() if one.four_eyes)
        return any(
            chosen is None or name in self.aside or self.datasets[name].ledger.id == chosen for name in asking
        )

    def each(self) -> list[Dataset]:
        """Every data set once, in the order of their names."""
        return [self.datasets[name] for name in sorted({one.name.lower() for one in self.datasets.values()})]

    def tables(self) -> list[Dataset]:
        """Those that questions can be asked of."""
        return [one for one in self.each() if not one.images]

    def dataset(self, name: str | None) -> Dataset:
        """The data set that has a table of this name; without a name, the only one."""
        if name is None and len(self.settings.policies) == 1:
            return self.each()[0]
        found = self.datasets.get((name or "").lower())
        if (name or "").lower() in self.aside:
            raise InvalidInput(self.aside[(name or "").lower()])
        if found is None:
            known = ", ".join(one.name for one in self.each())
            raise InvalidInput(f"expected a table of the desk, one of: {known}; got {name!r}")
        return found

    def close(self) -> None:
        for dataset in self.each():
            dataset.close()
        self.counted.write()
        self.database.close()
