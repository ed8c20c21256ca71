"""Lives of a message as vectors: their lengths, their angles, and what a careless plan would cost."""

import numpy as np
import pytest

from sfumato.errors import InvalidInput
from sfumato_lab.tracing import Release
from sfumato_lab.tracing.telling import telling


def lives(window, overlap):
    """(window + 1, window): what a message moves the releases of its life by, if told on each day, or never."""
    weights = telling(window, overlap)
    first, again = weights.first[::-1], weights.again[::-1]  # most releases left at the beginning of a life
    told = [np.concatenate([np.zeros(day), first[day : day + 1], again[day + 1 :]]) for day in range(window)]
    return np.array([*told, np.zeros(window)])


def distances(points):
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    return apart[np.triu_indices(len(points), 1)]


@pytest.mark.parametrize("window", [1, 2, 5, 14, 30])
def test_told_over_a_life_any_two_lives_are_one_apart(window):
    assert distances(lives(window, 0.5)) == pytest.approx(1)


@pytest.mark.parametrize("overlap", [0.0, 0.2, 0.5])
def test_a_message_is_a_unit_vector_whenever_it_is_told(overlap):
    points = lives(14, overlap)[:-1]
    wanted = (1 - overlap) * np.eye(14) + overlap
    assert points @ points.T == pytest.approx(wanted)
    assert (points >= 0).all()
    assert points.max() <= 1  # of one release


def test_told_at_once_two_lives_are_the_root_of_two_apart():
    assert telling(14, 0.0).again.max() == 0
    assert distances(lives(14, 0.0)).max() == pytest.approx(2**0.5)


def test_a_message_that_is_not_told_again_would_cost_more_than_is_paid():
    # Sabotage: keep the first words and drop what is told again, which brings two lives closer together.
    first = np.diag(telling(14, 0.5).first)
    assert distances(first).max() > 1.2


def test_more_is_told_at_first_than_at_the_same_price_without_telling_again():
    assert (telling(14, 0.5).first > 0.5**0.5).all()


def test_overlap_is_refused_where_it_would_not_be_honoured():
    with pytest.raises(InvalidInput, match=r"overlap between 0 and 0\.5"):
        Release(method="dpfn", overlap=0.6)
    with pytest.raises(InvalidInput, match="traditional"):
        Release(method="traditional", overlap=0.5)
