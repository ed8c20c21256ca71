"""Membership inference: scores that are high where a row was trained on. All take arrays, none a model.

Losses and confidences of shadow networks are (networks, rows); `members` says which network saw which row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

from sfumato.audit.bounds import Floats
from sfumato.errors import InvalidInput

Bools = npt.NDArray[np.bool_]


def loss_scores(losses: npt.ArrayLike) -> Floats:
    """Minus the loss: what was trained on is fitted better (Yeom et al. 2018)."""
    return -np.asarray(losses, dtype=np.float64)


def margins(losses: npt.ArrayLike) -> Floats:
    """ln(p / (1 − p)) of the true class's probability p = e^(−loss): close to normal (Carlini et al. 2022, §5).

    >>> margins([np.log(2.0)]).tolist()
    [0.0]
    """
    values = np.maximum(np.asarray(losses, dtype=np.float64), 1e-12)
    return -values - np.log(-np.expm1(-values))


def lira_scores(target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike) -> Floats:
    """ln of the ratio of two normal densities of each row's margin: among shadows with it, and without it.

    With few shadows the spread of all rows together is used, one with and one without (Carlini et al. 2022,
    "Membership inference attacks from first principles", algorithm 1 and §6.3). `target` is (rows,).
    """
    seen, others, inside = _shadow_arrays(target, shadows, members)
    means = [np.where(mask, others, 0).sum(0) / mask.sum(0) for mask in (inside, ~inside)]
    spreads = [
        _pooled_deviation(others, mask, mean) for mask, mean in zip((inside, ~inside), means, strict=True)
    ]
    densities = [stats.norm.logpdf(seen, mean, spread) for mean, spread in zip(means, spreads, strict=True)]
    return np.asarray(densities[0] - densities[1], dtype=np.float64)


def calibrated_scores(target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike) -> Floats:
    """The margin less its mean among shadows without the row: how much better than its difficulty (offline)."""
    seen, others, inside = _shadow_arrays(target, shadows, members)
    return np.asarray(seen - np.where(inside, 0, others).sum(0) / (~inside).sum(0), dtype=np.float64)


def shadow_classifier_scores(
    target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike, labels: npt.ArrayLike
) -> Floats:
    """A classifier for each class, taught on shadows to tell members by their confidences (Shokri et al. 2017).

    `target` is (rows, classes) and `shadows` (networks, rows, classes): log-probabilities. Features are the
    true class's, and the three largest in order.
    """
    from sklearn.linear_model import LogisticRegression

    labels = np.asarray(labels)
    known, taught = _features(np.asarray(target)[None], labels)[0], _features(np.asarray(shadows), labels)
    inside = np.asarray(members, dtype=np.bool_)
    scores = np.empty(len(labels))
    for label in np.unique(labels):
        rows = labels == label
        model = LogisticRegression(C=1.0, max_iter=500)
        model.fit(taught[:, rows].reshape(-1, known.shape[-1]), inside[:, rows].reshape(-1))
        scores[rows] = model.decision_function(known[rows])
    return scores


def _shadow_arrays(
    target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike
) -> tuple[Floats, Floats, Bools]:
    seen, others = np.asarray(target, dtype=np.float64), np.asarray(shadows, dtype=np.float64)
    inside = np.asarray(members, dtype=np.bool_)
    if others.ndim != 2 or inside.shape != others.shape or seen.shape != others.shape[1:]:
        raise InvalidInput(
            f"expected target (rows,), shadows and members (networks, rows), got {seen.shape}, {others.shape} "
            f"and {inside.shape}"
        )
    if not (inside.any(0) & ~inside.all(0)).all():
        raise InvalidInput(
            "expected every row in some shadow's training data and not in another's; add shadows"
        )
    return seen, others, inside


def _pooled_deviation(values: Floats, mask: Bools, means: Floats) -> float:
    residuals = np.where(mask, values - means, 0.0)
    freedom = max(1, int(mask.sum() - mask.any(0).sum()))
    return float(max(np.sqrt((residuals**2).sum() / freedom), 1e-6))


def _features(confidences: npt.NDArray[np.floating], labels: npt.NDArray[np.int64]) -> Floats:
    """(networks, rows, 4)."""
    true = np.take_along_axis(confidences, labels[None, :, None], axis=2)
    largest = np.sort(confidences, axis=2)[..., ::-1][..., :3]
    return np.maximum(np.concatenate([true, largest], axis=2), -30.0).astype(np.float64)
