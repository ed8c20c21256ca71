"""Who met whom on each day of the window."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sfumato import _validate
from sfumato.errors import InvalidInput

Integers = npt.NDArray[np.int64]
Pairs = tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]


class ContactWindow:
    """The last `window` days of contacts, each as a 0/1 matrix receivers × senders.

    *Guarantees*: a contact is mutual; two people who meet several times in one day exchange one message that
    day (so that one message enters one factor once); nobody meets themselves. Oldest day first; days before
    the first are empty.
    """

    def __init__(self, people: int, window: int) -> None:
        self.people = _validate.integer("people", people, least=1)
        self.window = _validate.integer("window", window, least=1)
        empty = sparse.csr_array((self.people, self.people), dtype=np.int64)
        self._days: deque[sparse.csr_array] = deque([empty] * self.window, maxlen=self.window)

    def add_day(self, pairs: Pairs) -> None:
        """Put today's meetings behind the last day's; the oldest day falls out."""
        one, other = (np.asarray(side) for side in pairs)
        _check_pairs(one, other, self.people)
        apart = one != other
        one, other = one[apart], other[apart]
        receivers = np.concatenate([one, other]).astype(np.int32)
        senders = np.concatenate([other, one]).astype(np.int32)
        ones = np.ones(receivers.size, dtype=np.int64)
        # Conversion to rows adds up repeated entries; they count once.
        day = sparse.coo_array((ones, (receivers, senders)), shape=(self.people, self.people)).tocsr()
        day.data[:] = 1
        self._days.append(day)

    def sum_over_contacts(self, day: int, values: Integers) -> Integers:
        """For every receiver the sum of their contacts' `values` on one day of the window."""
        matrix = self._days[day]
        if matrix.nnz == 0:
            return np.zeros(self.people, dtype=values.dtype)
        return matrix @ values

    def messages(self, day: int) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
        """(receivers, senders) of one day, sorted by receiver."""
        matrix = self._days[day]
        receivers = np.repeat(np.arange(self.people), np.diff(matrix.indptr))
        return receivers, matrix.indices

    def contacts_per_day(self) -> float:
        """Mean number of contacts of a person on the days that had any."""
        busy = [day.nnz / self.people for day in self._days if day.nnz]
        return float(np.mean(busy)) if busy else 0.0


def _check_pairs(one: npt.NDArray[np.integer], other: npt.NDArray[np.integer], people: int) -> None:
    if one.shape != other.shape or one.ndim != 1:
        raise InvalidInput(
            f"expected two equally long lists of people, got shapes {one.shape} and {other.shape}; "
            "give the two sides of each meeting"
        )
    if one.size and (min(one.min(), other.min()) < 0 or max(one.max(), other.max()) >= people):
        raise InvalidInput(f"expected people numbered 0 … {people - 1} in contacts; renumber them")
