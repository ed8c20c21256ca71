"""Random modules: exact against a loop over rows, rows kept apart, contributions within their bound."""

from __future__ import annotations

import collections

import pytest
import torch

import generated_modules as generated
from sfumato.training import Flat, clip

SEEDS, PART = 200, 20
_tally: collections.Counter[str] = collections.Counter()


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
@pytest.mark.filterwarnings("ignore")
def test_random_modules(first):
    broken = []
    for seed in range(first, first + PART):
        case = generated.module(seed)
        try:
            _tally[generated.outcome(case, precisions=[("double", "single")[seed % 2]])] += 1
        except Exception as error:
            broken.append(f"{seed}: {type(error).__name__}: {error}; {case.says}")
    assert not broken, "\n".join(broken)


def test_nearly_all_are_accepted():
    seen = sum(_tally.values())
    assert _tally["exact"] >= 0.97 * seen, _tally


def test_a_larger_contribution_is_noticed(monkeypatch):
    coefficients = Flat.coefficients
    monkeypatch.setattr(Flat, "coefficients", lambda self, norms: coefficients(self, norms) * 1.1)
    with pytest.raises(generated.Broken):
        generated.outcome(generated.module(1), precisions=["single"])


def test_a_row_that_spoils_the_sum_is_noticed(monkeypatch):
    sums = clip.weighted_sums
    monkeypatch.setattr(
        clip,
        "weighted_sums",
        lambda terms, weights, out, into: sums(terms, weights, torch.zeros_like(out), into),
    )
    with pytest.raises(generated.Broken, match=r"finite|slot"):
        generated.outcome(generated.module(1), precisions=["single"])
