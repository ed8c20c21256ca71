"""What `train`, `tune` and Python users run by default.

from sfumato.learn import Classifier

trained = Classifier.prepare(rows, test, epsilon=1).train(out="out/mnist")
"""

from sfumato.learn.classifier import Classifier, Trained
from sfumato.learn.features import CLOTHES, DESIGNED, DIGITS, SCENES, THINGS, Recipe, recipe_for
from sfumato.learn.options import Canaries, HoldOut, Settings

__all__ = [
    "CLOTHES",
    "DESIGNED",
    "DIGITS",
    "SCENES",
    "THINGS",
    "Canaries",
    "Classifier",
    "HoldOut",
    "Recipe",
    "Settings",
    "Trained",
    "recipe_for",
]
