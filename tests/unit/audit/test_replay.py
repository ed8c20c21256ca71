"""Record and replay on small pipelines: honest ones pass, each kind of leak is found."""

from dataclasses import dataclass

import numpy as np
import pytest

from sfumato.audit import ReplayedRelease, ReplayOutcome, replay
from sfumato.audit.pytest_plugin import replay as replayed  # noqa: F401
from sfumato.mechanisms import Gaussian, Laplace
from sfumato.randomness import SecretStream

ROWS = np.array([0.2, 0.9, 0.4, 0.7, 0.5])
TOTAL = Gaussian(sensitivity=1.0, sigma=4.0)


def honest(rows, sampler):
    total = TOTAL.release(float(rows.clip(0, 1).sum()), sampler)
    return ReplayOutcome(
        public={"sigma": TOTAL.sigma, "shape": (1,)}, released={"total": ReplayedRelease(total, 1.0)}
    )


def test_an_honest_pipeline_holds():
    report = replay(honest, ROWS, ROWS[:-1])
    assert report.holds
    assert report.movements["total"] == pytest.approx(0.5, abs=1e-4)


def count_in_public(rows, sampler):
    return ReplayOutcome(public={"rows": len(rows)}, released=honest(rows, sampler).released)


def too_sensitive(rows, sampler):
    return ReplayOutcome(
        released={"total": ReplayedRelease(TOTAL.release(float(3 * rows.sum()), sampler), 1.0)}
    )


def noise_by_data(rows, sampler):
    return ReplayOutcome(public=Gaussian(sensitivity=1.0, sigma=float(len(rows))).release(0.0, sampler) * 0)


def more_draws(rows, sampler):
    return ReplayOutcome(public=[sampler.laplace(1).size for _ in range(len(rows))])


def fails_on_many(rows, sampler):
    if len(rows) == 5:
        raise ValueError("five rows")
    return honest(rows, sampler)


def nan_released(rows, sampler):
    return ReplayOutcome(released={"total": ReplayedRelease(np.nan if len(rows) == 5 else 1.0, 1.0)})


def noiseless(rows, sampler):
    return {"mean": rows.mean()}


@pytest.mark.parametrize(
    ("leak", "finding"),
    [
        (count_in_public, "rows: 5 against 4"),
        (too_sensitive, "moved by 1.5 times"),
        (noise_by_data, "Departed"),
        (more_draws, "5 items against 4"),
        (fails_on_many, "error"),
        (nan_released, "moved by inf"),
        (noiseless, "mean"),
    ],
)
def test_leaks_are_found(leak, finding):
    report = replay(leak, ROWS, ROWS[:-1])
    assert not report.holds
    assert finding in "\n".join(report.findings) or finding in repr(report)
    with pytest.raises(AssertionError, match="differs in public"):
        report.require()


def test_a_neighbour_that_asks_for_less():
    def pipeline(rows, sampler):
        for _ in range(len(rows)):
            sampler.laplace(1)
        return "the same"

    assert "not asked for" in replay(pipeline, ROWS, ROWS[:-1]).findings[0]
    assert "Departed" in replay(pipeline, ROWS[:-1], ROWS).findings[0]


def test_coins_of_single_records_are_nobody_elses():
    """One uniform draw a record: the others keep theirs when the last record goes, or one more comes."""

    def pipeline(rows, sampler):
        chosen = sampler.uniform(len(rows)) < 0.5
        total = Laplace(sensitivity=1.0, scale=2.0).release(float(rows[chosen].sum()), sampler)
        return ReplayOutcome(released={"total": ReplayedRelease(total, 1.0, norm=1)})

    for seed in range(20):
        stream = SecretStream(test_seed=seed)
        assert replay(pipeline, ROWS, ROWS[:-1], sampler=stream).holds
        assert replay(pipeline, ROWS[:-1], ROWS, sampler=stream).holds


def test_public_values_are_walked():
    @dataclass
    class Card:
        name: str
        parts: list

    report = replay(lambda rows, _: {"card": Card("a", [1, {"x": np.arange(len(rows))}])}, ROWS, ROWS[:-1])
    assert report.differences == ("card.parts[1].x: arrays differ, shapes (5,) and (4,)",)


def test_the_fixture_passes_and_fails(replayed):  # noqa: F811
    assert replayed(honest, ROWS, ROWS[:-1]).holds
    with pytest.raises(AssertionError, match="rows: 5 against 4"):
        replayed(count_in_public, ROWS, ROWS[:-1])
