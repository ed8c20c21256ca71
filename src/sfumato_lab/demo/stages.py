"""All stages, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sfumato.runs import Result
from sfumato_lab.demo.attacks import audit, differencing, membership_attack
from sfumato_lab.demo.balance import balance
from sfumato_lab.demo.context import StageContext
from sfumato_lab.demo.dissolving import dissolving_digits
from sfumato_lab.demo.epidemic import epidemic
from sfumato_lab.demo.networks import plain_and_private, sweep
from sfumato_lab.demo.releases import recipe, reports, votes
from sfumato_lab.demo.synthetic import synthetic_digits


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A name, which is its folder; what the reader sees; and about how long it takes, full and quick."""

    name: str
    title: str
    run: Callable[[StageContext], Result]
    seconds: tuple[float, float]  # on two quiet cores, to say how much time is left
    uses: tuple[str, ...] = ()  # the settings it is made with: when one changes, it is run again
    always: bool = False  # cheap, and out of date as soon as another stage was run


STAGES: tuple[Stage, ...] = (
    # What charges nobody and takes seconds comes first, so that something is on the screen soon.
    Stage(
        name="differencing",
        title="an age out of two averages",
        run=differencing,
        seconds=(3, 3),
        uses=("differencing_tries", "reconstruction_people", "reconstruction_queries"),
    ),
    Stage(
        name="epidemic",
        title="contact tracing in an epidemic",
        run=epidemic,
        seconds=(2, 1),
        uses=("town", "days"),
    ),
    Stage(
        name="digits",
        title="digits dissolving",
        run=dissolving_digits,
        seconds=(8, 4),
        uses=("data", "test_rows", "readers_drawings", "readers_test"),
    ),
    Stage(
        name="plain-and-private",
        title="one network, plain and private",
        run=plain_and_private,
        seconds=(24, 9),
        uses=("data", "rows", "test_rows", "plain_epochs", "private_epochs"),
    ),
    Stage(
        name="sweep",
        title="the network at several ε",
        run=sweep,
        seconds=(22, 6),
        uses=("data", "rows", "test_rows", "sweep_epochs", "sweep_epsilons", "sweep_seeds"),
    ),
    Stage(
        name="best-recipe",
        title="the recipe that loses least",
        run=recipe,
        seconds=(35, 8),
        uses=("data", "rows", "test_rows", "recipe_epsilons", "recipe_seeds"),
    ),
    Stage(
        name="votes",
        title="labels by private vote",
        run=votes,
        seconds=(26, 6),
        uses=("data", "vote_rows", "test_rows", "teachers", "vote_images", "vote_adaptation"),
    ),
    Stage(
        name="synthetic",
        title="digits of nobody",
        run=synthetic_digits,
        seconds=(25, 8),
        uses=("data", "synthetic_rows", "test_rows", "synthetic_images"),
    ),
    Stage(
        name="reports",
        title="digits noised before they leave",
        run=reports,
        seconds=(16, 7),
        uses=("data", "rows", "test_rows"),
    ),
    Stage(
        name="membership",
        title="who was in the data?",
        run=membership_attack,
        seconds=(5, 2),
        uses=("data", "membership_rows", "membership_networks", "membership_targets"),
    ),
    Stage(name="audit", title="attacking the private step", run=audit, seconds=(4, 3), uses=("audit_pairs",)),
    Stage(
        name="ledger",
        title="the budget, spent",
        run=balance,
        seconds=(1, 1),
        uses=("data", "rows"),
        always=True,
    ),
)
