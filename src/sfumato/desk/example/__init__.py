"""A desk to try: invented people, their policy beside this file, and one account of each role."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sfumato.desk.accounts import Secrets, add_person
from sfumato.desk.desk import Desk
from sfumato.desk.grants import Wanted
from sfumato.display import csv_bytes
from sfumato.randomness import public_generator
from sfumato.storage import make_folder, write_whole

SIZE = 5000
CITIES = ("Delft", "Gouda", "Leiden", "Utrecht")


def make_example(place: Path) -> list[Secrets]:
    """Write an example beside the settings file `place`, which is written too, and add three people.

    Returns:
        The accounts with their passwords, which are told once.
    """
    make_folder(place.parent, readable=True)
    write_whole(place.parent / "people.csv", _people())
    for source, target in (("people.toml", place.with_name("people.toml")), ("desk.toml", place)):
        write_whole(target, Path(__file__).with_name(source).read_bytes())
    desk = Desk.open(place)
    wanted = Wanted(team="care", purpose="waiting times", epsilon=1.0, period="quarter", periods=4)
    made = [
        add_person(desk, "olga", role="officer"),
        add_person(desk, "ann", role="analyst", team="care", wanted=wanted),
        add_person(desk, "rita", role="reader"),
    ]
    desk.close()
    return made


def _people() -> bytes:
    draw = public_generator(2026)
    age = np.clip(draw.normal(47, 19, SIZE), 0, 105).astype(int)
    city = draw.choice(CITIES, SIZE, p=(0.2, 0.15, 0.25, 0.4))
    smoker = draw.random(SIZE) < 0.18
    risk = 1 / (1 + np.exp(4.2 - 0.05 * age - 0.9 * smoker))
    ill = (draw.random(SIZE) < risk).astype(int)
    visits = np.clip(draw.poisson(1.5 + 3 * ill), 0, 20)
    rows = zip(age.tolist(), city.tolist(), smoker.tolist(), visits.tolist(), ill.tolist(), strict=True)
    return csv_bytes([("age", "city", "smoker", "visits", "ill"), *rows])
