"""DP-SGD for any PyTorch module.

plan = TrainingPlan.calibrated(epsilon=1, delta=1e-5, public_size=60000, expected_batch=600, epochs=10)
trainer = PrivateTrainer(model, optimizer, plan, ledger=ledger)
for batch in trainer.batches(dataset):
    trainer.step(batch, loss_fn)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sfumato.mechanisms import Banded, LambdaCGD
from sfumato.runs import EpochReport
from sfumato.training.checkpoint import resume, save_checkpoint
from sfumato.training.clip import Automatic, ChunkResult, Clipping, Flat, PerLayer
from sfumato.training.distributed import Peers
from sfumato.training.engine import clip_chunk, clipped_gradient_sum, rounding_bound
from sfumato.training.estimate import CostEstimate, estimate
from sfumato.training.hold_out import EarlyStopping, HeldOut, NoisyAccuracy, NoisyGroups, keep_out, keep_some
from sfumato.training.hugging_face import default_loss
from sfumato.training.losses import LossFunction, Views, cross_entropy, moved_by_a_pixel
from sfumato.training.optimization import Optimization
from sfumato.training.plan import AdaptiveClipping, NoiseShares, TrainingPlan
from sfumato.training.run import TrainingResult, train
from sfumato.training.state import Callback, StepReport
from sfumato.training.trainer import PrivateTrainer

if TYPE_CHECKING:
    from sfumato.training.classifier import CoinSplit, NoisyAccuracyScorer, PrivateClassifier, check_search
    from sfumato.training.scaling import BoundedScaler

__all__ = [
    "AdaptiveClipping",
    "Automatic",
    "Banded",
    "BoundedScaler",
    "Callback",
    "ChunkResult",
    "Clipping",
    "CoinSplit",
    "CostEstimate",
    "EarlyStopping",
    "EpochReport",
    "Flat",
    "HeldOut",
    "LambdaCGD",
    "LossFunction",
    "NoiseShares",
    "NoisyAccuracy",
    "NoisyAccuracyScorer",
    "NoisyGroups",
    "Optimization",
    "Peers",
    "PerLayer",
    "PrivateClassifier",
    "PrivateTrainer",
    "StepReport",
    "TrainingPlan",
    "TrainingResult",
    "Views",
    "check_search",
    "clip_chunk",
    "clipped_gradient_sum",
    "cross_entropy",
    "default_loss",
    "estimate",
    "keep_out",
    "keep_some",
    "moved_by_a_pixel",
    "resume",
    "rounding_bound",
    "save_checkpoint",
    "train",
]

_OF_SCIKIT_LEARN = {
    "BoundedScaler": "scaling",
    "CoinSplit": "classifier",
    "check_search": "classifier",
    "NoisyAccuracyScorer": "classifier",
    "PrivateClassifier": "classifier",
}


def __getattr__(name: str) -> Any:
    """Import an estimator when it is first asked for: scikit-learn takes seconds, and most users need none."""
    if name not in _OF_SCIKIT_LEARN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_OF_SCIKIT_LEARN[name]}"), name)
