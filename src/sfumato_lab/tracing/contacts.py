"""Who met whom on each day of the window, and in which way."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sfumato import _validate
from sfumato.errors import InvalidInput

Integers = npt.NDArray[np.int64]
Pairs = tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]

_FEW = 1 / 16  # share of people who say anything, below which only their contacts are looked up


class Meetings(NamedTuple):
    """The meetings of one day.

    Attributes:
        one: One person of each meeting.
        other: The other.
        kind: A position in `Disease.kinds`; 0 if not told.

    >>> Meetings(np.array([0]), np.array([1])).kind is None
    True
    """

    one: npt.NDArray[np.integer]
    other: npt.NDArray[np.integer]
    kind: npt.NDArray[np.integer] | None = None

    def without(self, isolated: npt.NDArray[np.bool_]) -> Meetings:
        """Return the meetings without isolated people."""
        return self.where(~(isolated[self.one] | isolated[self.other]))

    def where(self, these: npt.NDArray[np.bool_]) -> Meetings:
        kind = None if self.kind is None else self.kind[these]
        return Meetings(self.one[these], self.other[these], kind)


class _Day:
    """One day's messages, receivers and senders; as matrices only on request."""

    def __init__(self, meetings: Meetings, people: int, kinds: int) -> None:
        self._people, self._kinds, self.meetings = people, kinds, meetings
        counts = np.zeros(kinds * people, dtype=np.int64)
        for side in (meetings.one, meetings.other):
            place = side if meetings.kind is None else meetings.kind * people + side
            counts += np.bincount(place, minlength=counts.size)
        self.counts: Integers = counts.reshape(kinds, people)

    @cached_property
    def matrices(self) -> list[sparse.csr_array]:
        """By kind, 0/1, receivers × senders."""
        receivers, senders, kind = self.directed(self.meetings)
        shape = (self._people, self._people)
        matrices = []
        for number in range(self._kinds):
            mine = kind == number
            ones = np.ones(int(mine.sum()), dtype=np.int64)
            matrices.append(sparse.coo_array((ones, (receivers[mine], senders[mine])), shape=shape).tocsr())
        return matrices

    def sums(self, values: Integers) -> Integers:
        """(kinds, people): for every receiver the sum of their contacts' values."""
        if np.count_nonzero(values) >= _FEW * self._people:
            return np.stack([matrix @ values for matrix in self.matrices])
        speaking = values != 0
        one, other = self.meetings.one, self.meetings.other
        heard = self.meetings.where(speaking[one] | speaking[other])
        receivers, senders, kind = self.directed(heard)
        total = np.zeros((self._kinds, self._people), dtype=values.dtype)
        np.add.at(total, (kind, receivers), values[senders])
        return total

    def directed(self, meetings: Meetings) -> tuple[Integers, Integers, Integers]:
        """Receivers, senders and kinds of the messages, each pair once, under the first kind it met in."""
        one, other = meetings.one.astype(np.int64), meetings.other.astype(np.int64)
        kind = np.zeros_like(one) if meetings.kind is None else meetings.kind.astype(np.int64)
        receivers, senders = np.concatenate([one, other]), np.concatenate([other, one])
        kinds = np.concatenate([kind, kind])
        key = np.sort((receivers * self._people + senders) * self._kinds + kinds)
        pair = key // self._kinds
        key = key[np.diff(pair, prepend=-1) != 0]
        pair = key // self._kinds
        return pair // self._people, pair % self._people, key % self._kinds


class ContactWindow:
    """The last `window` days of contacts.

    *Guarantees*: a contact is mutual; two people who meet several times in one day exchange one message that
    day (so that one message enters one sum once), under the first of the kinds in which they met; no person
    meets themselves. Oldest day first; days before the first are empty.

    Args:
        people: How many there are.
        window: How many days are remembered.
        kinds: How many kinds of contact there are.

    >>> window = ContactWindow(3, 2)
    >>> window.add_day((np.array([0]), np.array([1])))
    >>> window.counts(1).tolist()
    [[1, 1, 0]]
    """

    def __init__(self, people: int, window: int, *, kinds: int = 1) -> None:
        self.people = _validate.integer("people", people, least=1)
        self.window = _validate.integer("window", window, least=1)
        self.kinds = _validate.integer("kinds", kinds, least=1)
        nobody = np.zeros(0, dtype=np.int64)
        empty = _Day(Meetings(nobody, nobody), people, kinds)
        self._days: deque[_Day] = deque([empty] * self.window, maxlen=self.window)
        self.met: Integers = np.zeros((kinds, people), dtype=np.int64)  # meetings of each person in the window

    def add_day(self, pairs: Pairs | Meetings) -> None:
        """Put today's meetings behind the last day's; the oldest day falls out."""
        one, other = np.asarray(pairs[0]), np.asarray(pairs[1])
        told = pairs[2] if len(pairs) == 3 and self.kinds > 1 else None
        meetings = Meetings(one, other, None if told is None else np.asarray(told))
        _check(meetings, self.people, self.kinds)
        day = _Day(meetings.where(one != other), self.people, self.kinds)
        self.met += day.counts - self._days[0].counts
        self._days.append(day)

    def sums_by_kind(self, day: int, values: Integers) -> Integers:
        """(kinds, people): for every receiver the sum of their contacts' `values` on one day of the window."""
        return self._days[day].sums(values)

    def sum_over_contacts(self, day: int, values: Integers) -> Integers:
        """Return for every receiver the sum of their contacts' `values` on one day, over all kinds."""
        return np.asarray(self._days[day].sums(values).sum(axis=0), dtype=np.int64)

    def counts(self, day: int) -> Integers:
        """(kinds, people): meetings of each person on one day of the window."""
        return self._days[day].counts

    def messages(self, day: int) -> tuple[Integers, Integers]:
        """(receivers, senders) of one day, sorted by receiver."""
        receivers, senders, _ = self._days[day].directed(self._days[day].meetings)
        return receivers, senders

    def contacts_per_day(self) -> float:
        """Mean number of meetings of a person on the days that had any."""
        met = [float(day.counts.sum()) / self.people for day in self._days]
        busy = [count for count in met if count]
        return float(np.mean(busy)) if busy else 0.0


def _check(meetings: Meetings, people: int, kinds: int) -> None:
    one, other, kind = meetings
    if one.shape != other.shape or one.ndim != 1 or (kind is not None and kind.shape != one.shape):
        raise InvalidInput(
            f"expected equally long lists of people, got shapes {one.shape} and {other.shape}; "
            "give the two sides of each meeting, and its kind or none at all"
        )
    if one.size and (min(one.min(), other.min()) < 0 or max(one.max(), other.max()) >= people):
        raise InvalidInput(f"expected people numbered 0 … {people - 1} in contacts; renumber them")
    if kind is not None and kind.size and (kind.min() < 0 or kind.max() >= kinds):
        raise InvalidInput(f"expected kinds numbered 0 … {kinds - 1} in contacts; see Disease.kinds")
