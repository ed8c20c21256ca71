"""Votes as they are shown: the noise agrees with the answer that was given."""

import numpy as np

from sfumato.randomness import SecretStream
from sfumato_lab.demo.releases import _with_noise


def test_the_noised_winner_is_the_answer_even_an_unlikely_one():
    counts = np.array([60, 40, 0, 0])
    for label in (0, 1):
        assert _with_noise(counts, label, 30.0, SecretStream()).argmax() == label


def test_an_answer_that_cannot_be_is_not_waited_for():
    shown = _with_noise(np.array([1000, 0]), 1, 1.0, SecretStream(), tries=50)
    assert shown.argmax() == 0
