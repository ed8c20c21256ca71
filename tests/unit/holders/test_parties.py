"""Who takes part, and what each adversary does not know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidInput
from sfumato.holders import Parties


def test_ten_holders():
    parties = Parties(holders=10, dropped=2, colluding=3)
    assert parties.threshold == 7  # of 8 who are left
    assert parties.shares_against == {"recipient": 8, "holder": 7, "coordinator": 8, "coalition": 5}
    assert parties.counted == 5


def test_a_holder_that_is_honest_knows_its_own_share():
    assert Parties(holders=5).counted == 4


@pytest.mark.keeps_out("Noise counted that a colluding or lost holder would have had to add")
@given(st.integers(3, 200), st.integers(0, 100), st.integers(0, 100))
def test_two_stories_cannot_both_be_opened(holders, dropped, colluding):
    """Honest holders help in one story only; colluders in both."""
    try:
        parties = Parties(holders=holders, dropped=dropped, colluding=colluding)
    except InvalidInput:
        return
    assert 2 * parties.threshold > (holders - colluding) + 2 * colluding
    assert parties.threshold <= holders - dropped  # a round that is as declared can be opened
    assert 1 <= parties.counted <= holders - dropped - max(1, colluding)


@pytest.mark.parametrize("wrong", [(2, 0, 0), (10, 4, 3), (10, 0, 10), (5, 3, 0), (10, -1, 0)])
def test_what_cannot_be_withstood_is_refused(wrong):
    with pytest.raises(InvalidInput, match="expected"):
        Parties(holders=wrong[0], dropped=wrong[1], colluding=wrong[2])
