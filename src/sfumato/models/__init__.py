"""Plain PyTorch modules; they know nothing of privacy.

model = sfumato.models.build("cnn", seed=1)
"""

from sfumato.models.feature_classifier import FeatureClassifier, Whitened
from sfumato.models.normalization import replace_batchnorm
from sfumato.models.patches import PatchCodes
from sfumato.models.prior import PRIORS, JoinedPriors, PriorLevels, PriorNet, load_prior, prior_note
from sfumato.models.registry import CNN, MLP, MODELS, ResNet, TanhCNN, Task, build, resnet18
from sfumato.models.rows_apart import rows_apart
from sfumato.models.scattering import OpponentScattering, Scattering, ScatteringCodes

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "PRIORS",
    "FeatureClassifier",
    "JoinedPriors",
    "OpponentScattering",
    "PatchCodes",
    "PriorLevels",
    "PriorNet",
    "ResNet",
    "Scattering",
    "ScatteringCodes",
    "TanhCNN",
    "Task",
    "Whitened",
    "build",
    "load_prior",
    "prior_note",
    "replace_batchnorm",
    "resnet18",
    "rows_apart",
]
