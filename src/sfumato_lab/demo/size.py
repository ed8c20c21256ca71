"""How much of everything the demo computes."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.accounting import Budget

DELTA = 1e-5
BUDGET = Budget(epsilon=12.0, delta=DELTA)
"""Of all MNIST stages together. A sweep with repetitions is a luxury that only public data can afford."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The settings of all stages; a stage that was run with others is run again."""

    name: str
    data: str = "mnist"
    rows: int  # private training images
    test_rows: int  # public test images
    plain_epochs: int
    private_epochs: int
    sweep_epochs: int
    sweep_epsilons: tuple[float, ...]
    sweep_seeds: tuple[int, ...]
    recipe_epsilons: tuple[float, ...]
    recipe_seeds: tuple[int, ...]
    teachers: int
    vote_rows: int  # private images that the teachers share
    vote_images: int  # public images that a student learns from and is tested on
    vote_adaptation: int  # steps
    synthetic_rows: int  # private images that synthetic ones are made of
    synthetic_images: int
    readers_drawings: int  # that the readers of noised digits learn from
    readers_test: int  # noised digits that are read at each ε
    differencing_tries: int
    reconstruction_people: int
    reconstruction_queries: int
    audit_pairs: int
    membership_rows: int
    membership_networks: int
    membership_targets: int
    town: int  # people
    days: int


FULL = Size(
    name="demo",
    rows=60_000,
    test_rows=10_000,
    plain_epochs=4,
    private_epochs=4,
    sweep_epochs=2,
    sweep_epsilons=(0.25, 1.0, 4.0),
    sweep_seeds=(1,),
    recipe_epsilons=(0.5, 1.0, 2.0),
    recipe_seeds=(1,),
    teachers=500,
    vote_rows=60_000,
    vote_images=10_000,
    vote_adaptation=40,
    synthetic_rows=20_000,
    synthetic_images=5000,
    readers_drawings=6000,
    readers_test=2000,
    differencing_tries=1000,
    reconstruction_people=32,
    reconstruction_queries=128,
    audit_pairs=100,
    membership_rows=1000,
    membership_networks=32,
    membership_targets=8,
    town=5000,
    days=60,
)
QUICK = Size(
    name="demo-quick",
    rows=9_000,
    test_rows=3000,
    plain_epochs=3,
    private_epochs=3,
    sweep_epochs=2,
    sweep_epsilons=(0.25, 2.0),
    sweep_seeds=(1,),
    recipe_epsilons=(1.0,),
    recipe_seeds=(1,),
    teachers=200,
    vote_rows=6000,
    vote_images=2000,
    vote_adaptation=0,
    synthetic_rows=9000,
    synthetic_images=1500,
    readers_drawings=4000,
    readers_test=300,
    differencing_tries=300,
    reconstruction_people=32,
    reconstruction_queries=64,
    audit_pairs=25,
    membership_rows=400,
    membership_networks=16,
    membership_targets=4,
    town=3000,
    days=45,
)
