"""What `train`, `tune` and Python users run by default.

from sfumato.recipes import Classifier

trained = Classifier.prepare(rows, test, epsilon=1).train(out="out/mnist")
"""

from sfumato.recipes.classifier import Classifier, Trained
from sfumato.recipes.features import CLOTHES, DESIGNED, DIGITS, SCENES, THINGS, Recipe, recipe_for
from sfumato.recipes.options import Canaries, HoldOut, Settings

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
