"""Plain PyTorch modules; they know nothing of privacy.

model = sfumato.models.build("cnn", seed=1)
"""

from sfumato.models.cnn import CNN
from sfumato.models.mlp import MLP
from sfumato.models.normalization import replace_batchnorm
from sfumato.models.registry import MODELS, Task, build
from sfumato.models.resnet import ResNet, resnet18
from sfumato.models.tanh_cnn import TanhCNN

__all__ = ["CNN", "MLP", "MODELS", "ResNet", "TanhCNN", "Task", "build", "replace_batchnorm", "resnet18"]
