"""Which rows each element of a result depends on, by those of the arguments: a rule for each kind of operation.

A label is a byte: bits 0 to 6 stand for rows, `VARIES` for what is no row's and yet not constant (weights,
random draws). Rules look at shapes and arguments, never at the values of rows, so that what a model does on
rare values only is seen as well. An operation without a rule is tried on fresh values (`tried`); what cannot
be tried depends on everything.
"""

from sfumato.training.dependence.by_shape import (
    moved,
)
from sfumato.training.dependence.by_trial import (
    tried,
)
from sfumato.training.dependence.operation import (
    BITS,
    EVERYTHING,
    ROWS,
    VARIES,
    Labels,
    Operation,
    as_bits,
    bound,
    passes_for,
    tensors_in,
    tree_tensors,
    united,
    views,
    written,
)
from sfumato.training.dependence.table import (
    draws,
    labels_after,
    rule_of,
)

__all__ = [
    "BITS",
    "EVERYTHING",
    "ROWS",
    "VARIES",
    "Labels",
    "Operation",
    "as_bits",
    "bound",
    "draws",
    "labels_after",
    "moved",
    "passes_for",
    "rule_of",
    "tensors_in",
    "tree_tensors",
    "tried",
    "united",
    "views",
    "written",
]
