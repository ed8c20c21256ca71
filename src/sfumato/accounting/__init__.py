"""Events → ε and δ → calibration; dp-accounting does the mathematics.

An event states a release; accounting computes its cost. Privacy loss distributions (PLD) price a plan fixed
in advance, exactly; Rényi divergences (RDP) are the cross-check, and the unit of the filter for adaptive
spending.

Terms:
    event: The release.
    delta: The δ of the guarantee, at least 1e-10, or 0 for pure ε.
    epsilon: The ε of the guarantee.
    relation: The neighbouring relation.
    budget: The ε, δ and relation that the event must keep to.
    orders: The Rényi orders α, each above 1.
    people: How many people there are, as far as that is public.
    guess: A value of the right order of magnitude, from which the search starts.
    mean_trials: The mean of the secret number of trials, above 1.
    false_positive_rate: How often the attacker names a person who is not in the data, between 0 and 1.

>>> plan = repeat(poisson_sampled(0.01, GaussianEvent(noise_multiplier=1.0)), 1000)
>>> epsilon(plan, delta=1e-5) < rdp_epsilon(plan, delta=1e-5)
True
"""

from sfumato.accounting.calibration import calibrate
from sfumato.accounting.codec import check_affordable, event_from_json, event_to_json
from sfumato.accounting.events import (
    ApproximateEvent,
    Budget,
    ClippedGaussianEvent,
    ComposedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    DpEvent,
    ExponentialMechanismEvent,
    GaussianEvent,
    GaussianSharesEvent,
    LaplaceEvent,
    MixtureOfGaussiansEvent,
    NoEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    Relation,
    RepeatAndSelectEvent,
    RepeatedEvent,
    compose,
    for_group,
    poisson_sampled,
    pure,
    repeat,
)
from sfumato.accounting.filter import PrivacyFilter
from sfumato.accounting.gaussian import gaussian_noise_multiplier
from sfumato.accounting.meaning import (
    attacker_true_positive_rate,
    in_words,
    largest_true_positive_rate,
    protection_warning,
    warn_of_little_protection,
)
from sfumato.accounting.pld import delta, epsilon
from sfumato.accounting.rdp import rdp, rdp_delta, rdp_epsilon
from sfumato.accounting.selection import best_of, calibrate_selection, draw_trials

__all__ = [
    "ApproximateEvent",
    "Budget",
    "ClippedGaussianEvent",
    "ComposedEvent",
    "DiscreteGaussianEvent",
    "DiscreteLaplaceEvent",
    "DpEvent",
    "ExponentialMechanismEvent",
    "GaussianEvent",
    "GaussianSharesEvent",
    "LaplaceEvent",
    "MixtureOfGaussiansEvent",
    "NoEvent",
    "NonPrivateEvent",
    "PoissonSampledEvent",
    "PrivacyFilter",
    "RandomizedResponseEvent",
    "Relation",
    "RepeatAndSelectEvent",
    "RepeatedEvent",
    "attacker_true_positive_rate",
    "best_of",
    "calibrate",
    "calibrate_selection",
    "check_affordable",
    "compose",
    "delta",
    "draw_trials",
    "epsilon",
    "event_from_json",
    "event_to_json",
    "for_group",
    "gaussian_noise_multiplier",
    "in_words",
    "largest_true_positive_rate",
    "poisson_sampled",
    "protection_warning",
    "pure",
    "rdp",
    "rdp_delta",
    "rdp_epsilon",
    "repeat",
    "warn_of_little_protection",
]
