"""Labels by vote, and data noised before they leave the person."""

from __future__ import annotations

from sfumato.accounting import GaussianEvent, LaplaceEvent, Relation, repeat
from sfumato.errors import InvalidInput
from sfumato.governance.outside.federated import classical_sigma
from sfumato.governance.outside.finding import Finding
from sfumato.governance.outside.gradient import claimed
from sfumato.governance.outside.settings import Settings


def judge_votes(run: Settings) -> Finding:
    """PATE with Laplace noise of scale 1/γ on each count (Papernot et al. 2017).

    One teacher that votes otherwise moves two counts by 1: two Laplace releases of multiplier 1/γ a query.
    What a data-dependent analysis prints is a statement about these votes, not a guarantee.
    """
    gamma, queries = run.positive("query_noise"), run.whole("queries")
    stated = claimed(run)
    problems = [
        "A data-dependent ε describes the votes that were cast and is itself computed from private data; "
        "what holds for any votes is the price given here."
    ]
    return Finding(
        event=repeat(LaplaceEvent(1 / gamma), 2 * queries),
        relation=Relation.ADD_REMOVE,
        unit=run.text("unit") or "record",
        delta=run.delta(),
        claimed=stated,
        problems=tuple(problems),
        assumed=("a record is in the shard of one teacher, and its shard depends on that record alone",),
        elsewhere={Relation.REPLACE_ONE: repeat(LaplaceEvent(1 / gamma), 4 * queries)},  # two teachers
    )


def judge_local(run: Settings) -> Finding:
    """Each record scaled to norm 1 and noised by the Gaussian mechanism before it leaves.

    Two records on the unit sphere are up to 2 apart, and the unit has one report only if it is noised once.
    """
    epsilon, releases = run.positive("epsilon"), run.whole("releases", 1)
    delta = run.delta()
    if not delta:
        raise InvalidInput("expected delta > 0 for Gaussian noise, got delta=0; take the δ of the settings")
    declared = run.positive("sensitivity", 1.0)
    problems = []
    if epsilon >= 1:
        problems.append(
            "The classical formula for Gaussian noise is proved for ε < 1 only; it was used at ε = "
            f"{epsilon:g}."
        )
    if declared < 2:
        problems.append(
            f"sensitivity = {declared:g} was declared; two records of norm 1 are up to 2 apart, so the noise "
            f"is {2 / declared:g} times too small."
        )
    if releases > 1:
        problems.append(f"Each record was noised {releases} times; every time is a release of its own.")
    noise = classical_sigma(epsilon, delta) * declared / 2
    return Finding(
        event=repeat(GaussianEvent(noise), releases),
        relation=Relation.REPLACE_ONE,
        unit=run.text("unit") or "person",
        delta=delta,
        claimed=claimed(run),
        problems=tuple(problems),
        assumed=("the label, too, was noised; one that was sent as it is has no privacy",),
    )
