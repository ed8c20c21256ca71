"""A desk to try: invented people, a policy, and one account of each role."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sfumato.desk.accounts import Secrets
from sfumato.desk.desk import Desk
from sfumato.desk.grants import Wanted
from sfumato.desk.people import add_person
from sfumato.display import csv_bytes
from sfumato.randomness import public_generator
from sfumato.storage import make_folder, write_whole

SIZE = 5000
CITIES = ("Delft", "Gouda", "Leiden", "Utrecht")
_POLICY = f"""# Invented people: nobody's data.
[table]
name = "people"
source = "people.csv"
public_size = {SIZE}

[budget]
epsilon = 8.0
delta = 1e-6

[columns.age]
type = "integer"
lower = 0
upper = 110

[columns.city]
type = "text"
categories = {list(CITIES)}

[columns.smoker]
type = "boolean"

[columns.visits]
type = "integer"
lower = 0
upper = 20

[columns.ill]
type = "integer"
lower = 0
upper = 1
categories = [0, 1]
"""
_DESK = """policies = ["people.toml"]
database = "desk.db"
tick = 1
name = "Example desk"
"""


def make_example(place: Path) -> list[Secrets]:
    """Write an example beside the settings file `place`, which is written too, and add three people.

    Returns:
        The accounts with their passwords, which are told once.
    """
    make_folder(place.parent, readable=True)
    write_whole(place.parent / "people.csv", _people())
    write_whole(place.parent / "people.toml", _POLICY.encode())
    write_whole(place, _DESK.encode())
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
