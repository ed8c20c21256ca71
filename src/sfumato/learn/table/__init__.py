"""Models of a table, trained from its policy: linear, boosted pairs of columns, or a small network.

Encoders come from declared bounds and categories only. Each plan is priced before a row is read.
"""

from sfumato.learn.table.encoding import Encoding, Target
from sfumato.learn.table.estimators import PrivateRegressor
from sfumato.learn.table.model import TableModel, load_table
from sfumato.learn.table.plan import MODELS, TablePlan
from sfumato.learn.table.run import TableRun, TableTraining

__all__ = [
    "MODELS",
    "Encoding",
    "PrivateRegressor",
    "TableModel",
    "TablePlan",
    "TableRun",
    "TableTraining",
    "Target",
    "load_table",
]
