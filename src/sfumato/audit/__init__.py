"""Attacks and lower bounds: takes scores, arrays and callables, and knows no algorithm.

A proof on paper bounds ε from above, an attack in practice from below; a claim outside the two is wrong.

>>> attack = Errors(false_positives=0, negatives=500, false_negatives=0, positives=500)
>>> epsilon_bound(attack, delta=0.0, alpha=0.01) > 4.5
True
"""

from sfumato.audit import one_run, trade_off
from sfumato.audit.bounds import (
    DISPLAY_ALPHA,
    VERDICT_ALPHA,
    Bound,
    Errors,
    Interval,
    balanced_mu_bound,
    best_threshold,
    bound_corrected,
    bound_on_held_out,
    clopper_pearson,
    epsilon_bound,
    gdp_epsilon,
    gdp_epsilon_bound,
    mu_bound,
)
from sfumato.audit.canaries import DiracScores, Step, dirac_scores
from sfumato.audit.distinguish import (
    Draws,
    PairAttack,
    Score,
    attack_pairs,
    channel_score,
    distinguish,
    frequency_score,
    gaussian_score,
    vote_attack,
    worst_votes,
)
from sfumato.audit.one_run import Guesses
from sfumato.audit.replay import (
    RecordingSampler,
    ReplayedRelease,
    ReplayingSampler,
    ReplayOutcome,
    ReplayReport,
    replay,
)
from sfumato.audit.roc import (
    OperatingPoint,
    RateEstimate,
    Roc,
    at_false_positive_rate,
    auc,
    draw_roc,
    operating_point,
)
from sfumato.audit.verdict import Check, Verdict, noise_checks, poisson_checks

__all__ = [
    "DISPLAY_ALPHA",
    "VERDICT_ALPHA",
    "Bound",
    "Check",
    "DiracScores",
    "Draws",
    "Errors",
    "Guesses",
    "Interval",
    "OperatingPoint",
    "PairAttack",
    "RateEstimate",
    "RecordingSampler",
    "ReplayOutcome",
    "ReplayReport",
    "ReplayedRelease",
    "ReplayingSampler",
    "Roc",
    "Score",
    "Step",
    "Verdict",
    "at_false_positive_rate",
    "attack_pairs",
    "auc",
    "balanced_mu_bound",
    "best_threshold",
    "bound_corrected",
    "bound_on_held_out",
    "channel_score",
    "clopper_pearson",
    "dirac_scores",
    "distinguish",
    "draw_roc",
    "epsilon_bound",
    "frequency_score",
    "gaussian_score",
    "gdp_epsilon",
    "gdp_epsilon_bound",
    "mu_bound",
    "noise_checks",
    "one_run",
    "operating_point",
    "poisson_checks",
    "replay",
    "trade_off",
    "vote_attack",
    "worst_votes",
]
