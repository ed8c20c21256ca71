"""Everything that a running desk holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sfumato.desk import grants, trail
from sfumato.desk.config import Settings, load_settings
from sfumato.desk.database import Database
from sfumato.desk.datasets import Dataset, open_datasets
from sfumato.desk.pace import Pace
from sfumato.desk.sessions import Visits
from sfumato.desk.throttle import Buckets, Effort, Tries
from sfumato.errors import InvalidInput

REQUESTS_AT_ONCE, REQUESTS_A_SECOND = 120, 4.0


@dataclass
class Desk:
    """Settings, the desk's database, the data sets with their ledgers, and the limits."""

    settings: Settings
    database: Database
    datasets: dict[str, Dataset]
    pace: Pace
    tries: Tries
    buckets: Buckets = field(default_factory=lambda: Buckets(size=REQUESTS_AT_ONCE, rate=REQUESTS_A_SECOND))
    strangers: Buckets = field(default_factory=lambda: Buckets(size=60, rate=1.0))
    guesses: Buckets = field(default_factory=lambda: Buckets(size=60, rate=1.0))
    visitors: Buckets = field(default_factory=lambda: Buckets(size=300, rate=10.0))
    effort: Effort = field(default_factory=lambda: Effort(size=60.0, rate=0.1))
    visits: Visits = field(default_factory=Visits)
    counted: trail.Counted = field(init=False)

    def __post_init__(self) -> None:
        self.counted = trail.Counted(self.database)

    @classmethod
    def open(cls, place: str | Path) -> Desk:
        """The desk of a settings file."""
        settings = load_settings(place)
        database = Database(settings.database)
        datasets = open_datasets(settings.policies, settings.images)
        return cls(settings, database, datasets, Pace(database, settings.tick), Tries(database))

    def finish(self) -> None:
        """Do what a crash left between the desk and a ledger; for the server alone, when it starts."""
        for dataset in self.each():
            grants.finish(self.database, dataset.ledger, dataset.name)

    def each(self) -> list[Dataset]:
        """Every data set once, in the order of their names."""
        return [self.datasets[name] for name in sorted({one.name.lower() for one in self.datasets.values()})]

    def tables(self) -> list[Dataset]:
        """Those that questions can be asked of."""
        return [one for one in self.each() if not one.images]

    def dataset(self, name: str | None) -> Dataset:
        """The data set that has a table of this name; without a name, the only one."""
        if name is None and len(self.each()) == 1:
            return self.each()[0]
        found = self.datasets.get((name or "").lower())
        if found is None:
            known = ", ".join(one.name for one in self.each())
            raise InvalidInput(f"expected a table of the desk, one of: {known}; got {name!r}")
        return found

    def close(self) -> None:
        for dataset in self.each():
            dataset.close()
        self.counted.write()
        self.database.close()
