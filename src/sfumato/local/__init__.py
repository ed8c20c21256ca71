"""Data noised before it leaves the person, and learning that knows the noise.

The client half randomises (`LabelledDirection`, `PrivUnit`, `PrivUnitG`, `GaussianVector`, `LaplaceVector`,
`UnaryEncoding`, `LocalHashing`, and the randomized responses of `sfumato.mechanisms`) and hands out one report
a person (`Reporter`); it needs no torch. The server half estimates and learns from reports alone.
"""

from sfumato.local.artefact import NoisedData, read_noised
from sfumato.local.bounded import GaussianVector, LaplaceVector
from sfumato.local.class_moments import ClassMoments, Learnt, RawMoments, shrink, unguided
from sfumato.local.classifiers import (
    CLASSIFIERS,
    LinearClassifier,
    QuadraticClassifier,
    blend,
    linear_discriminant,
    nearest_mean,
    quadratic_discriminant,
    ridge,
)
from sfumato.local.columns import ReportedColumn, TablePlan, read_table_plan, table_plan
from sfumato.local.direction import LabelledDirection, PrivUnit, PrivUnitG
from sfumato.local.encoding import LocalHashing, UnaryEncoding
from sfumato.local.estimates import Estimate, class_means, frequencies, mean, second_moment
from sfumato.local.learning import LearntClassifier, learn
from sfumato.local.plan import RANDOMISERS, ReportPlan
from sfumato.local.release import certificate_place, noise_images, open_ledger, release_images
from sfumato.local.reporter import AlreadyReported, Collector, Report, Reporter
from sfumato.local.shuffle import first_reports, shuffle, shuffled_epsilon, shuffled_in_words
from sfumato.local.split import GaussianSplit
from sfumato.local.views import KINDS, View, build_view

__all__ = [
    "CLASSIFIERS",
    "KINDS",
    "RANDOMISERS",
    "AlreadyReported",
    "ClassMoments",
    "Collector",
    "Estimate",
    "GaussianSplit",
    "GaussianVector",
    "LabelledDirection",
    "LaplaceVector",
    "Learnt",
    "LearntClassifier",
    "LinearClassifier",
    "LocalHashing",
    "NoisedData",
    "PrivUnit",
    "PrivUnitG",
    "QuadraticClassifier",
    "RawMoments",
    "Report",
    "ReportPlan",
    "ReportedColumn",
    "Reporter",
    "TablePlan",
    "UnaryEncoding",
    "View",
    "blend",
    "build_view",
    "certificate_place",
    "class_means",
    "first_reports",
    "frequencies",
    "learn",
    "linear_discriminant",
    "mean",
    "nearest_mean",
    "noise_images",
    "open_ledger",
    "quadratic_discriminant",
    "read_noised",
    "read_table_plan",
    "release_images",
    "ridge",
    "second_moment",
    "shrink",
    "shuffle",
    "shuffled_epsilon",
    "shuffled_in_words",
    "table_plan",
    "unguided",
]
