import math
import subprocess
import sys

import numpy as np
import pytest

from sfumato import accounting
from sfumato.accounting import (
    ApproximateEvent,
    ClippedGaussianEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    ExponentialMechanismEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RandomizedResponseEvent,
    Relation,
    compose,
    poisson_sampled,
    pure,
    repeat,
)
from sfumato.accounting.rdp import ORDERS
from sfumato.errors import InvalidInput, NotPrivate

ATOMS = [
    GaussianEvent(2.0),
    LaplaceEvent(1.5),
    DiscreteGaussianEvent(3.0, 2),
    DiscreteLaplaceEvent(0.4, 3),
    pure(0.7),
    poisson_sampled(0.1, GaussianEvent(1.2)),
    poisson_sampled(0.1, ClippedGaussianEvent(1.2)),
]


def test_nothing_costs_nothing():
    assert accounting.epsilon(accounting.NoEvent(), 1e-5) == 0
    assert accounting.epsilon(repeat(GaussianEvent(1.0), 0), 1e-5) == 0
    assert accounting.rdp_epsilon(accounting.NoEvent(), 1e-5) == 0


@pytest.mark.keeps_out("An accountant that returns 0 or less for less noise")
@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(0),
        LaplaceEvent(0),
        NonPrivateEvent(),
        poisson_sampled(0.1, GaussianEvent(0)),
        DiscreteGaussianEvent(0.0, 1),
    ],
)
def test_no_noise_costs_everything(event):
    assert accounting.epsilon(event, 1e-5) == math.inf
    assert accounting.delta(event, 5.0) == 1
    assert accounting.rdp_epsilon(event, 1e-5) == math.inf


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianEvent(-1.0),
        lambda: GaussianEvent(math.nan),
        lambda: LaplaceEvent(-0.1),
        lambda: poisson_sampled(1.2, GaussianEvent(1)),
        lambda: poisson_sampled(0.0, GaussianEvent(1)),
        lambda: accounting.PoissonSampledEvent(math.nan, GaussianEvent(1)),
        lambda: ApproximateEvent(1.0, 1.5),
        lambda: DiscreteLaplaceEvent(-1.0, 1),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(InvalidInput):
        accounting.epsilon(make(), 1e-5)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan, math.inf, "1e-5"])
def test_bad_delta_is_refused(delta):
    with pytest.raises(InvalidInput):
        accounting.epsilon(GaussianEvent(1.0), delta)


def test_a_delta_too_small_to_trust_is_refused_for_numerical_composition():
    event = repeat(poisson_sampled(0.01, GaussianEvent(1.0)), 1000)
    with pytest.raises(InvalidInput, match="cannot be trusted"):
        accounting.epsilon(event, 1e-11)


@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-10])
def test_numerical_composition_is_never_below_the_closed_form(delta):
    """A Laplace with next to no cost forces the numerical route; the Gaussian's closed form is a floor."""
    exact = accounting.epsilon(repeat(GaussianEvent(3.0), 100), delta)
    numerical = accounting.epsilon(compose(repeat(GaussianEvent(3.0), 100), LaplaceEvent(1e9)), delta)
    assert exact <= numerical <= exact * (1 + 2e-4)


def test_closed_form_holds_for_any_delta():
    assert accounting.epsilon(GaussianEvent(1.0), 1e-30) > accounting.epsilon(GaussianEvent(1.0), 1e-20)


def test_pure_events_add_up_at_delta_zero():
    assert accounting.epsilon(compose(LaplaceEvent(2.0), pure(0.25), DiscreteLaplaceEvent(0.1, 3)), 0) == (
        pytest.approx(0.5 + 0.25 + 0.3)
    )
    assert accounting.epsilon(GaussianEvent(100.0), 0) == math.inf


def test_an_event_without_a_price_is_refused():
    class Unheard(accounting.DpEvent):
        pass

    with pytest.raises(NotPrivate):
        accounting.epsilon(Unheard(), 1e-5)


@pytest.mark.parametrize("event", ATOMS, ids=repr)
def test_price_of_a_sequence_does_not_depend_on_nesting(event):
    flat = accounting.epsilon(repeat(event, 6), 1e-5)
    nested = accounting.epsilon(compose(repeat(repeat(event, 2), 2), event, event), 1e-5)
    assert nested == pytest.approx(flat, rel=1e-9)


@pytest.mark.parametrize("relation", list(Relation))
def test_an_unsampled_release_costs_the_same_under_each_relation(relation):
    """The noise multiplier is already stated for the relation: neither accountant doubles anything."""
    for event in (GaussianEvent(2.0), LaplaceEvent(2.0), DiscreteGaussianEvent(2.0, 1)):
        assert accounting.epsilon(event, 1e-5, relation=relation) == accounting.epsilon(event, 1e-5)
        assert accounting.rdp_epsilon(event, 1e-5, relation=relation) == accounting.rdp_epsilon(event, 1e-5)


def test_sampling_under_replace_one_meets_the_unsampled_price_at_rate_one():
    nearly = accounting.PoissonSampledEvent(1 - 1e-9, ClippedGaussianEvent(2.0))
    assert accounting.epsilon(nearly, 1e-5, relation=Relation.REPLACE_ONE) == pytest.approx(
        accounting.epsilon(GaussianEvent(2.0), 1e-5), rel=1e-3
    )


def test_replacing_costs_at_most_removing_and_adding():
    """With σ/C = 2 the replace-one multiplier is σ/2C = 1; removing one and adding another bounds it."""
    steps = 50
    replace = accounting.epsilon(
        repeat(poisson_sampled(0.05, ClippedGaussianEvent(1.0)), steps), 1e-5, relation=Relation.REPLACE_ONE
    )
    add = repeat(poisson_sampled(0.05, GaussianEvent(2.0)), steps)
    assert (
        accounting.epsilon(add, 1e-5)
        < replace
        <= accounting.epsilon(accounting.for_group(add, 2), 1e-5) * 1.001
    )


def test_discrete_laplace_divergence_against_a_plain_sum():
    scale, shift, order = 0.4, 3, 2.5
    x = np.arange(-400, 400)
    p, q = (math.tanh(scale / 2) * np.exp(-scale * abs(x - c)) for c in (0, shift))
    expected = math.log(np.sum(p**order * q ** (1 - order))) / (order - 1)
    assert accounting.rdp(DiscreteLaplaceEvent(scale, shift), [order])[0] == pytest.approx(expected, rel=1e-9)


def test_pure_divergence_is_that_of_randomized_response():
    p, order = math.exp(1.3) / (1 + math.exp(1.3)), 4.0
    expected = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
    assert accounting.rdp(pure(1.3), [order])[0] == pytest.approx(expected, rel=1e-12)


def test_randomized_response_keeps_its_textbook_epsilon():
    """Two fair coins tell the truth 3 times in 4: ε = ln 3."""
    two_coins = RandomizedResponseEvent(noise_parameter=0.5, num_buckets=2)
    assert accounting.epsilon(two_coins, 0, relation=Relation.REPLACE_ONE) == pytest.approx(math.log(3))
    with pytest.raises(InvalidInput, match="replace-one"):
        accounting.epsilon(two_coins, 0)


def test_group_prices():
    assert accounting.for_group(LaplaceEvent(3.0), 3) == LaplaceEvent(1.0)
    assert accounting.for_group(ApproximateEvent(0.1, 1e-6), 2).delta == pytest.approx(
        1e-6 * (1 + math.exp(0.1))
    )
    alone = repeat(poisson_sampled(0.01, GaussianEvent(1.0)), 100)
    assert accounting.epsilon(accounting.for_group(alone, 1), 1e-5) == pytest.approx(
        accounting.epsilon(alone, 1e-5), rel=1e-3
    )


@pytest.mark.parametrize(
    "event", [*ATOMS, ExponentialMechanismEvent(0.5), compose(*ATOMS), repeat(ATOMS[5], 9)]
)
def test_events_survive_json(event):
    data = accounting.event_to_json(event)
    assert accounting.event_from_json(data) == event


@pytest.mark.parametrize(
    "data", [{"kind": "magic"}, {"kind": "gaussian"}, {"kind": "gaussian", "noise_multiplier": 1, "x": 2}, {}]
)
def test_unknown_json_is_refused(data):
    with pytest.raises(InvalidInput):
        accounting.event_from_json(data)


def test_attacker_rate_of_a_gaussian_is_its_trade_off_curve():
    """Between N(0,1) and N(μ,1) the best test has TPR = Φ(Φ⁻¹(FPR) + μ) (Dong, Roth, Su 2019)."""
    from scipy.stats import norm

    best = norm.cdf(norm.ppf(0.01) + 0.5)
    rate = accounting.attacker_true_positive_rate(GaussianEvent(2.0))
    assert best <= rate <= best * 1.02


def test_orders_are_those_of_dp_accounting():
    from dp_accounting.rdp import rdp_privacy_accountant

    assert list(ORDERS) == list(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)


def test_an_event_is_dp_accountings_own_whichever_was_imported_first():
    code = (
        "import pickle, sys; from sfumato.accounting import GaussianEvent as ours; event = ours(2.0);"
        "assert 'scipy' not in sys.modules; written = pickle.dumps(event); import dp_accounting;"
        "assert dp_accounting.GaussianDpEvent is ours is dp_accounting.dp_event.GaussianDpEvent;"
        "assert pickle.loads(written) == event"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_that_import_events_and_their_package_get_the_same_classes():
    code = (
        "import threading, importlib\n"
        "names = ['sfumato.accounting', 'dp_accounting'] * 3; barrier = threading.Barrier(6); failed = []\n"
        "def load(name):\n"
        "    barrier.wait()\n"
        "    try: importlib.import_module(name)\n"
        "    except BaseException as error: failed.append(error)\n"
        "threads = [threading.Thread(target=load, args=(name,)) for name in names]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "import dp_accounting, sfumato.accounting as ours\n"
        "assert not failed and ours.GaussianEvent is dp_accounting.GaussianDpEvent, failed"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
