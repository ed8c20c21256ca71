"""Run folders of every kind, made of the types that runs are made of."""

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from sfumato import runs as results
from sfumato.accounting import GaussianEvent
from sfumato.ledger import Certificate
from sfumato.report import write_report
from sfumato.storage import RunFolder

LEVELS = (None, 10_000.0, 1000.0, 300.0, 100.0, 8.0, 1.0, 0.25)


def epochs(*accuracies):
    return tuple(
        results.Epoch(epoch=number, test_accuracy=one, test_loss=1 - one)
        for number, one in enumerate(accuracies, start=1)
    )


def network(epsilon, accuracy):
    return results.Network(
        name="CNN",
        epsilon=epsilon,
        test_accuracy=accuracy,
        test_loss=1 - accuracy,
        history=epochs(accuracy - 0.02, accuracy),
    )


def sweep(method, name, points, **more):
    runs = tuple(
        results.SweepRun(epsilon=epsilon, target_epsilon=epsilon, seed=seed, test_accuracy=accuracy)
        for epsilon, accuracy in points
        for seed in (1, 2)
    )
    return results.Sweep(method=method, name=name, data="mnist", delta=1e-5, runs=runs, **more)


ROC = ((0.001, 0.05), (0.01, 0.1), (0.1, 0.3), (1.0, 1.0))
SHARE = results.PointEstimate(value=0.1, lower=0.05, upper=0.2)
MAPS = {"conv1": "maps.png", "conv2": "maps.png"}
EVERYTHING = {
    "comparison": results.Comparison(
        data="mnist",
        rows=60000,
        test_rows=10000,
        delta=1e-5,
        attacker_false_positive_rate=0.01,
        attacker_true_positive_rate=0.0231,
        networks=(network(None, 0.989), network(1.0, 0.951)),
        feature_maps=results.FeatureMaps(digit="digit.png", plain=MAPS, private=MAPS),
    ),
    "sweep": sweep("network", "CNN from scratch", ((0.5, 0.92), (2.0, 0.96))),
    "best-recipe": sweep(
        "recipe", "best recipe", ((0.5, 0.982), (1.0, 0.985)), note="from drawings", plain_accuracy=0.992
    ),
    "votes": results.Votes(
        epsilon=0.99,
        delta=1e-5,
        student_accuracy=0.98,
        start_accuracy=0.96,
        label_accuracy=0.9,
        teachers=100,
        asked=60,
        answered=60,
        plan={"sigma": 18.0},
        data="mnist",
        ballots=(
            results.Ballot(counts=(90, 10, *[0] * 8), noisy=(85.1, 22.0, *[-3.0] * 8), label=0, truth=0),
            results.Ballot(counts=(40, 35, 25, *[0] * 7), noisy=(31.0, 44.0, *[1.0] * 8), label=1, truth=0),
        ),
    ),
    "reports": results.Reports(
        epsilon=4.0, delta=0.0, people=60000, test_accuracy=0.97, note="from drawings", data="mnist"
    ),
    "digits": results.NoisedDigits(
        delta=1e-5,
        sheet="digits.png",
        digits=10,
        levels=tuple(
            results.NoiseLevel(epsilon=epsilon, readable=0.97 - 0.12 * number)
            for number, epsilon in enumerate(LEVELS)
        ),
    ),
    "synthetic": results.SyntheticDigits(
        data="mnist",
        epsilon=0.999,
        delta=1e-5,
        people=10000,
        images=3000,
        left_out=0.15,
        agreement=0.98,
        test_accuracy=0.975,
        nearest=0.17,
        nearest_test=0.16,
        sheet="synthetic.png",
        rows=("drawings", "synthetic", "nearest real"),
    ),
    "differencing": results.Differencing(
        attack=results.AverageAttack(
            truth=61,
            large_group=41,
            large_average=31.0,
            small_group=40,
            small_average=30.25,
            minimum_group=7,
            ages=(3, 110),
            averages_only=61.0,
            private_95=(-222.5, 437.9),
            share_within_5_years=0.056,
            tries=300,
            epsilon=1.0,
        ),
        histogram=results.Histogram(counts=(1, 4, 9, 4, 1), edges=(-400, -200, 0, 200, 400, 600)),
        without_a_limit=results.Reconstruction(people=64, answered=256, refused=0, right=1.0, guessing=0.53),
        under_a_budget=results.Reconstruction(people=64, answered=5, refused=251, right=0.64, guessing=0.53),
    ),
    "membership": results.Membership(
        attack="LiRA",
        members=500,
        delta=1e-4,
        false_positive_rate=0.001,
        networks=tuple(
            results.AttackedNetwork(
                name=name, epsilon=epsilon, test_accuracy=0.9, auc=SHARE, true_positive_rate=SHARE, curve=ROC
            )
            for name, epsilon in (("without privacy", None), ("ε = 1", 1.0))
        ),
    ),
    "audit": results.Audit(
        claimed_epsilon=2.38,
        delta=1e-5,
        lower_bound=2.34,
        sure_bound=2.26,
        alpha=0.05,
        sure_alpha=1e-6,
        refuted=False,
        verdict="not refuted: the attack proves ε ≥ 2.34, 98% of the claim",
        untested=("the sampler",),
        details={"canaries": 25992},
    ),
    "epidemic": results.Tracing(
        people=5000,
        days=4,
        delta=1e-3,
        unit="one contact-day message",
        curves=tuple(
            results.EpidemicCurve(
                method=method,
                name=method,
                epsilon=epsilon,
                epsilon_person=epsilon,
                peak=0.2,
                prevalence=(0.01, 0.1, 0.2, 0.1),
            )
            for method, epsilon in (("none", None), ("traditional", 1.0), ("dpfn", None), ("dpfn", 1.0))
        ),
    ),
    "ledger": results.LedgerStatement(
        epsilon=12.0,
        delta=1e-5,
        unit="record",
        relation="add-remove",
        epsilon_spent=3.18,
        epsilon_left=8.82,
        epsilon_if_fixed_in_advance=2.24,
        charges=(
            results.ChargeLine(entry=1, purpose="CNN at ε = 1", epsilon=1.0, epsilon_spent=1.0, private=True),
            results.ChargeLine(entry=2, purpose="CNN at ε = 2", epsilon=2.0, epsilon_spent=3.18, private=True),
        ),
        refusal="expected a charge that fits the budget",
    ),
}
"""A demo: one result for each stage."""

OWN = {
    "training": results.Training(epsilon=0.9, delta=1e-5, test_accuracy=0.9, test_loss=0.3),
    "plain-training": results.PlainTraining(test_accuracy=0.93),
    "tuning": results.Tuning(
        epsilon=2.5, delta=1e-5, test_accuracy=0.8, mean_trials=5, learning_rate=8, clip_norm=0.5
    ),
    "votes": replace(EVERYTHING["votes"], data=None, ballots=()),
    "reports": replace(EVERYTHING["reports"], data=None),
    "audit": EVERYTHING["audit"],
    "tracing": replace(EVERYTHING["epidemic"], curves=EVERYTHING["epidemic"].curves[-1:]),
    "ledger": replace(EVERYTHING["ledger"], charges=(), refusal=None),
    "failure": results.Failure(title="a stage", sentence="the disk is full"),
    "reproduction": results.Reproduction(
        name="private-cnn", findings={"delta": 1e-5, "figures": ["digit.png"]}
    ),
}
"""One result of every kind that a user's own runs leave."""


def write(folder, result, certificate=None, history=None):
    made = RunFolder.make(folder)
    sheet = np.full((28 * len(LEVELS), 280), 90, dtype=np.uint8)
    for name in ("digits.png", "synthetic.png", "digit.png", "maps.png"):
        Image.fromarray(sheet).save(made.figures / name)
    Image.new("L", (2000, 90)).save(made.figures / "wide.png")
    results.write_run(made, result, certificate=certificate, history=history)
    return folder


@pytest.fixture
def write_run():
    return write


@pytest.fixture
def everything():
    return dict(EVERYTHING)


@pytest.fixture(params=OWN)
def own(request):
    return OWN[request.param]


@pytest.fixture
def own_results():
    return dict(OWN)


@pytest.fixture
def demo_folder(tmp_path):
    """A folder with a run for each stage of the demo."""
    for name, result in EVERYTHING.items():
        write(tmp_path / "demo" / name, result)
    return tmp_path / "demo"


@pytest.fixture
def certificate():
    return Certificate.of(GaussianEvent(4.0), purpose="a model", delta=1e-5)


@pytest.fixture
def report_of_everything(demo_folder, tmp_path, certificate):
    """The page of a whole demo, with a certificate."""
    write(demo_folder / "by-hand", replace(OWN["training"], data="mnist"), certificate)
    write(demo_folder / "table", replace(OWN["reproduction"], findings={"figures": ["wide.png"]}))
    return write_report([demo_folder], tmp_path / "report.html").path
