"""Plain PyTorch modules; they know nothing of privacy.

model = sfumato.models.build("cnn", seed=1)
"""

from sfumato.models.cnn import CNN
from sfumato.models.feature_classifier import FeatureClassifier, Whitened
from sfumato.models.joined_priors import JoinedPriors
from sfumato.models.mlp import MLP
from sfumato.models.normalization import replace_batchnorm
from sfumato.models.opponent import OpponentScattering
from sfumato.models.patches import PatchCodes
from sfumato.models.prior import PRIORS, PriorLevels, PriorNet, load_prior, prior_note
from sfumato.models.registry import MODELS, Task, build
from sfumato.models.resnet import ResNet, resnet18
from sfumato.models.scattering import Scattering, ScatteringCodes
from sfumato.models.tanh_cnn import TanhCNN

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
]
