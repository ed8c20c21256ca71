"""Computations on one row: a class for each operator of SQL, and the readers of its nodes."""

from sfumato.query.expressions import conditions as conditions  # which imports the others: all register readers
