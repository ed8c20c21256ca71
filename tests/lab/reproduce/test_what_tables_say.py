"""What a stranger reads in the tables of reproductions."""

import pytest

from sfumato.errors import InvalidInput
from sfumato_lab.reproduce import published_mnist
from sfumato_lab.reproduce.private_cnn import Result, real_epsilons
from sfumato_lab.reproduce.private_cnn_command import _table


@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_trial_says_that_it_is_not_comparable(quick):
    table = _table(Result(real_epsilon=real_epsilons(), settings=(), figures=(), quick=quick))
    assert ("not comparable" in table.title) == quick


def test_names_with_commas_are_told_apart(tmp_path):
    with pytest.raises(InvalidInput) as refusal:
        published_mnist.run(tmp_path, only=["nonsense"])
    for row in published_mnist.ROWS:
        assert repr(row.name) in str(refusal.value)
