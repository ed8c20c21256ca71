"""Define the results that compare several runs or show an attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from sfumato.runs.results import Epoch, Result
from sfumato.schema import Count, Delta, Epsilon, Json, Model, Share


class Network(Model):
    """One network of a comparison; without privacy its ε is None."""

    name: str
    epsilon: Epsilon | None
    test_accuracy: Share
    test_loss: float | None = None
    history: tuple[Epoch, ...] = ()


class FeatureMaps(Model):
    """Names of pictures: of an input, and of its feature maps in each layer of each network."""

    digit: str
    plain: Mapping[str, str]
    private: Mapping[str, str]


class Comparison(Result, tag="comparison"):
    """The same network with and without privacy."""

    data: str
    rows: Count
    test_rows: Count
    delta: Delta
    networks: tuple[Network, ...]
    private_epochs: Count | None = None
    attacker_false_positive_rate: Share | None = None
    attacker_true_positive_rate: Share | None = None  # at most, of the private network
    feature_maps: FeatureMaps | None = None


class SweepRun(Model):
    """One run of a sweep; `target_epsilon` is the ε of its calibration."""

    epsilon: Epsilon
    target_epsilon: Epsilon
    seed: int = 0
    test_accuracy: Share
    test_loss: float | None = None


class Sweep(Result, tag="sweep"):
    """One method at several ε, each with repetitions."""

    method: str  # "network" from first weights, or the "recipe" on public features
    name: str
    data: str
    delta: Delta
    runs: tuple[SweepRun, ...]
    rows: Count | None = None
    test_rows: Count | None = None
    epochs: Count | None = None
    note: str = ""
    plain_accuracy: Share | None = None  # the same method without privacy


class NoiseLevel(Model):
    """How many noised images can still be read at one ε; None: no noise."""

    epsilon: Epsilon | None
    readable: Share


class NoisedDigits(Result, tag="noised-digits"):
    """Digits with more and more noise: one picture, a row for each level, the clear ones first."""

    delta: Delta
    sheet: str
    digits: Annotated[int, Meta(ge=0, le=100)]  # that stand side by side
    levels: tuple[NoiseLevel, ...]


class SyntheticDigits(Result, tag="synthetic-digits"):
    """Synthetic images: one picture with a column for each class, and rows as `rows` names them."""

    data: str
    epsilon: Epsilon
    delta: Delta
    people: Count  # whose images were learned from
    images: Count  # that were drawn
    left_out: Share  # of the images, as the private classifier was not sure of their label
    agreement: Share  # of images that a network which learned from real ones reads as labelled
    test_accuracy: Share  # of a network that learned from the synthetic images alone
    nearest: float  # median distance to the nearest real training image, in grey levels from 0 to 1
    nearest_test: float  # the same for public test images
    sheet: str
    rows: tuple[str, ...]


class Histogram(Model):
    counts: tuple[Count, ...]
    edges: tuple[float, ...]  # one more than counts


class AverageAttack(Model):
    """Two averages over groups that differ in one person, and the age they give away."""

    truth: float
    large_group: Count
    large_average: float
    small_group: Count
    small_average: float
    minimum_group: Count  # the fewest people that an average is given of
    ages: tuple[float, float]  # that people can have
    averages_only: float  # the age as exact averages give it away
    private_95: tuple[float, float]
    share_within_5_years: Share
    tries: Count
    epsilon: Epsilon


class Reconstruction(Model):
    """How many people's secrets many noisy sums gave away."""

    people: Count
    answered: Count
    refused: Count
    right: Share
    guessing: Share


class Differencing(Result, tag="differencing"):
    """Results of attacks on averages and sums."""

    attack: AverageAttack
    histogram: Histogram
    without_a_limit: Reconstruction | None = None
    under_a_budget: Reconstruction | None = None


class PointEstimate(Model):
    value: float
    lower: float
    upper: float


class AttackedNetwork(Model):
    """How well an attacker tells members from others; the curve is (false, true) positive rates."""

    name: str
    epsilon: Epsilon | None
    test_accuracy: Share
    auc: PointEstimate
    true_positive_rate: PointEstimate  # at the false positive rate of the whole study
    curve: tuple[tuple[Share, Share], ...]


class Membership(Result, tag="membership"):
    """Membership inference against networks with and without privacy."""

    attack: str
    members: Count  # that each network was trained on
    delta: Delta
    false_positive_rate: Share
    networks: tuple[AttackedNetwork, ...]


class Reproduction(Result, tag="reproduction"):
    """A published table beside ours, as its own command shows it."""

    name: str
    findings: Mapping[str, Json]
