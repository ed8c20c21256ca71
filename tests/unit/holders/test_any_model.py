"""Studies of any network, and of people who are with several holders."""

import pytest
import torch

from sfumato import PrivateTrainer, TrainingPlan, accounting, datasets
from sfumato.errors import InvalidInput
from sfumato.holders import NetworkTerms, Parties, Study, simulate
from sfumato.schema import read
from sfumato.training import NoiseShares, cross_entropy

MLP = NetworkTerms(model="mlp", shape=(1, 8, 8), steps=6, expected_batch=200, clip_norm=1.0, learning_rate=1.0)


def plan(m, **changes):
    terms = {"sample_rate": 0.1, "expected_batch": 60, "steps": 20, "noise_multiplier": 4.0, **changes}
    return TrainingPlan(**terms, shares=NoiseShares(count=5, dimension=100, holders_per_unit=m))


def test_a_person_with_several_holders_costs_more():
    """Unsampled, m parts of norm C are one of norm mC; sampled independently they cost less than that."""
    whole = plan(3, sample_rate=1.0)
    together = plan(1, sample_rate=1.0, noise_multiplier=4.0 / 3)
    assert whole.epsilon(1e-5) == pytest.approx(together.epsilon(1e-5), rel=1e-6)
    apart, at_once = plan(3).epsilon(1e-5), plan(1, noise_multiplier=4.0 / 3).epsilon(1e-5)
    assert plan(1).epsilon(1e-5) < plan(2).epsilon(1e-5) < apart <= at_once * (1 + 1e-9)
    assert TrainingPlan.from_json(plan(3).to_json()) == plan(3)


@pytest.mark.keeps_out("A person with several holders priced as if with one")
def test_the_price_covers_the_exact_mixture():
    """Two parts, each there by its own coin: the exact loss of the sum of both is no dearer than charged."""
    q, sigma = 0.2, 3.0
    mixture = accounting.MixtureOfGaussiansEvent(
        standard_deviation=sigma,
        sensitivities=[0.0, 1.0, 2.0],
        sampling_probs=[(1 - q) ** 2, 2 * q * (1 - q), q**2],
    )
    exact = accounting.epsilon(accounting.repeat(mixture, 20), 1e-5)
    charged = plan(2, sample_rate=q, noise_multiplier=sigma).epsilon(1e-5)
    assert exact <= charged
    assert exact > 0.7 * charged  # and the price is not far off
    assert plan(1, sample_rate=q, noise_multiplier=sigma).epsilon(1e-5) < exact  # one part alone would not do


def test_holders_train_a_network():
    rows = datasets.load("digits", "train").excerpt(400)
    done = simulate(rows, rows, parties=Parties(holders=3), epsilon=20.0, network=MLP, holders_per_unit=2)
    assert done.test_accuracy > 0.3
    assert done.study.noise.dimension == sum(p.numel() for p in done.model.parameters())
    assert max(done.study.epsilons().values()) <= 20.0
    assert Study.from_dict(done.study.to_dict()) == done.study
    assert Study.from_dict(done.study.to_dict()).digest == done.study.digest


@pytest.mark.parametrize(
    "changes", [{"model": "gpt"}, {"shape": (1, 8)}, {"shape": (1, 8, 9)}, {"steps": 0}, {"clip_norm": 0}]
)
def test_networks_that_cannot_be(changes):
    with pytest.raises(InvalidInput, match="expected"):
        read(NetworkTerms, {**MLP.to_json(), **changes})


def test_a_section_with_other_names_is_refused():
    with pytest.raises(InvalidInput, match="section network"):
        read(NetworkTerms, {"model": "mlp"}, name="section network")


@pytest.mark.parametrize("margin", [2.0**-6, 2.0**-8])
def test_chunks_are_halved_until_rounding_is_within_the_margin(margin):
    """Larger chunks round more; a plan of one holder keeps them, and pays for it."""
    head = torch.nn.Linear(768, 10)
    terms = {"sample_rate": 0.2, "expected_batch": 12000, "steps": 20, "noise_multiplier": 10.0}
    shares = NoiseShares(count=5, dimension=7690, margin=margin)
    rows = torch.zeros(1, 768), torch.zeros(1, dtype=torch.long)

    def eta(**of_plan):
        plan = TrainingPlan(**terms, **of_plan)
        trainer = PrivateTrainer(head, torch.optim.SGD(head.parameters(), lr=1.0), plan, ledger=None)
        trainer.rehearse(rows, cross_entropy)
        return trainer.eta

    assert eta() > 2.0**-6
    assert 0 < eta(shares=shares) <= margin
    assert TrainingPlan.from_json(TrainingPlan(**terms, shares=shares).to_json()).shares == shares
