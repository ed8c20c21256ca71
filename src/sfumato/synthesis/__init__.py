"""Synthetic tables: rows drawn from a model of noisy marginals, under one budget.

>>> import numpy as np
>>> from sfumato.randomness import SecretStream
>>> from sfumato.synthesis import CellColumn, SyntheticModel
>>> smokes = CellColumn(name="smokes", type="boolean", values=(False, True))
>>> shares = np.eye(3)
>>> model = SyntheticModel.of([smokes], {"smokes": shares}, {("smokes",): np.array([0.75, 0.25, 0])}, 100.0)
>>> np.bincount(model.draw(1000)["smokes"]).tolist()
[750, 250]
"""

from sfumato.synthesis.canaries import WithCanaries, draw_canaries, linked, membership_scores
from sfumato.synthesis.cells import CellColumn, cell_columns
from sfumato.synthesis.counting import EngineMarginals, Marginals
from sfumato.synthesis.model import SyntheticModel
from sfumato.synthesis.plan import PaidTable, SynthesisPlan
from sfumato.synthesis.release import Places, Released, Request, release
from sfumato.synthesis.synthesizer import Synthesis, Synthesizer, workload

__all__ = [
    "CellColumn",
    "EngineMarginals",
    "Marginals",
    "PaidTable",
    "Places",
    "Released",
    "Request",
    "Synthesis",
    "SynthesisPlan",
    "Synthesizer",
    "SyntheticModel",
    "WithCanaries",
    "cell_columns",
    "draw_canaries",
    "linked",
    "membership_scores",
    "release",
    "workload",
]
