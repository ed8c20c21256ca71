"""Runs of `train` and `tune`, and the same for Python users.

from sfumato.learn import Classifier

trained = Classifier.prepare(rows, test, epsilon=1).train(out="out/mnist")
"""

from sfumato.learn.classifier import Canaries, Classifier, HoldOut, Settings, Trained
from sfumato.learn.features import CLOTHES, DESIGNED, DIGITS, SCENES, THINGS, Recipe, recipe_for

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
