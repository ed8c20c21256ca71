"""How much privacy one data set may lose."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato import _validate
from sfumato.accounting.events import Relation


@dataclass(frozen=True, kw_only=True)
class Budget:
    """(ε, δ) for one data set, one privacy unit and one neighbouring relation.

    Args:
        epsilon: The most ε that all releases together may cost, above 0.
        delta: The δ at which ε is counted: 0 for pure ε, otherwise far below 1 / number of units.
        unit: Who is protected, in one word such as "record" or "person".
        relation: Which data sets are neighbours; add-remove unless another is named.

    Raises:
        InvalidInput: If ε or δ is outside its range, or the unit holds characters that are not seen.

    >>> Budget(epsilon=3, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05, unit='record', relation=<Relation.ADD_REMOVE: 'add-remove'>)
    """

    epsilon: float
    delta: float = 0.0
    unit: str = "record"
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _validate.delta("delta", self.delta))
        _validate.one_of("relation", str(self.relation), [str(relation) for relation in Relation])
        object.__setattr__(self, "relation", Relation(self.relation))
        _validate.text("unit", self.unit)
