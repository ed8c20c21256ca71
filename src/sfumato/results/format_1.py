"""Results as version 0.1 wrote them: "algorithm" or "stage" says the kind, and there is no format number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sfumato.errors import InvalidInput
from sfumato.results import runs, studies
from sfumato.results.record import Made, build
from sfumato.results.result import Result

_Old = Mapping[str, Any]
_AGES = {  # format 1 said the age alone; the village was always this one
    "large_group": 96,
    "large_average": 49.5,
    "small_group": 95,
    "small_average": 49.0,
    "ages": (0, 120),
}
_MINIMUM_GROUP = 50


def read(data: _Old) -> Result:
    """The result in `data`, which has no format number."""
    if data.get("status") == "failed":
        return _some(runs.Failure, data)
    name = str(data.get("stage") or data.get("algorithm") or _guessed(data))
    if name not in READERS:
        known = ", ".join(sorted(READERS))
        raise InvalidInput(f"expected a result of a known kind, got {name!r}; version 0.1 wrote {known}")
    try:
        return READERS[name](data)
    except KeyError as error:
        raise InvalidInput(f"expected a {name} result of version 0.1 with {error}, got none") from error
    except (TypeError, AttributeError, IndexError) as error:
        raise InvalidInput(f"expected a {name} result of version 0.1, got another shape") from error


def _guessed(data: _Old) -> str:
    """Private votes, audits and reproductions did not say what they were."""
    marks = {
        "student_accuracy": "pate",
        "claimed_epsilon": "audit",
        "recipe": "reproduction",
        "attacks": "reproduction",
    }
    return next((kind for mark, kind in marks.items() if mark in data), "unknown")


def _some(made: type[Made], data: _Old, /, **more: Any) -> Made:
    """A record of those of its fields that `data` has."""
    known = {name: data[name] for name in made.__dataclass_fields__ if name in data}
    return build(made, {**known, **more})


def _settings(data: _Old) -> _Old:
    found: _Old = data.get("settings", {})
    return found


def _training(data: _Old) -> Result:
    if data["epsilon"] in ("inf", None):  # a table of accuracies wrote its runs without privacy so
        return _some(runs.PlainTraining, data)
    return _some(runs.Training, data)


def _votes(data: _Old) -> Result:
    votes = [_some(runs.Ballot, vote) for vote in data.get("votes", ())]
    plan = data.get("plan") or {"sigma": data["sigma"]}
    accuracy = data.get("student_accuracy", data.get("test_accuracy"))
    name = _settings(data).get("data")
    return _some(runs.Votes, data, student_accuracy=accuracy, plan=plan, ballots=votes, data=name)


def _reports(data: _Old) -> Result:
    last = data["runs"][-1]
    return _some(
        runs.Reports,
        data,
        epsilon=last["epsilon"],
        test_accuracy=last["test_accuracy"],
        data=_settings(data).get("data"),
    )


def _audit(data: _Old) -> Result:
    told = {"stage", "title", "settings", "settings_key", "status", "ratio", *runs.Audit.__dataclass_fields__}
    details = {name: value for name, value in data.items() if name not in told}
    return _some(runs.Audit, data, details=details, alpha=0.05, sure_alpha=1e-6)


def _tracing(data: _Old) -> Result:
    curves = [_some(runs.EpidemicCurve, curve) for curve in data["curves"]]
    return _some(runs.Tracing, data, curves=curves)


def _ledger(data: _Old) -> Result:
    charges = [_some(runs.ChargeLine, line) for line in data["charges"]]
    return _some(runs.LedgerStatement, data, charges=charges)


def _comparison(data: _Old) -> Result:
    networks = [_some(studies.Network, run, history=_history(run["history"])) for run in data["runs"]]
    epochs = _settings(data).get("private_epochs")
    return _some(
        studies.Comparison, data, networks=networks, private_epochs=epochs, attacker_false_positive_rate=0.01
    )


def _history(lines: Any) -> list[runs.Epoch]:
    return [_some(runs.Epoch, line) for line in lines]


def _sweep(data: _Old) -> Result:
    return _some(
        studies.Sweep,
        data,
        method="network",
        name="CNN from scratch",
        runs=_sweep_runs(data),
        epochs=_settings(data).get("sweep_epochs"),
        test_rows=_settings(data).get("test_rows"),
    )


def _best_recipe(data: _Old) -> Result:
    return _some(studies.Sweep, data, method="recipe", name="best recipe", runs=_sweep_runs(data))


def _sweep_runs(data: _Old) -> list[studies.SweepRun]:
    return [_some(studies.SweepRun, {"target_epsilon": run["epsilon"], **run}) for run in data["runs"]]


def _noised_digits(data: _Old) -> Result:
    return _some(studies.NoisedDigits, data)


def _differencing(data: _Old) -> Result:
    attack = _some(studies.AverageAttack, {**data["differencing"], **_AGES}, minimum_group=_MINIMUM_GROUP)
    return _some(
        studies.Differencing,
        data,
        attack=attack,
        without_a_limit=data.get("reconstruction_without_a_limit"),
        under_a_budget=data.get("reconstruction_under_a_budget"),
    )


def _membership(data: _Old) -> Result:
    attack = data["attack"]
    networks = [
        _some(
            studies.AttackedNetwork,
            found,
            name=name,
            auc=found[attack]["auc"],
            true_positive_rate=found[attack]["tpr_at_fpr_0.001"],
        )
        for name, found in data["networks"].items()
    ]
    return _some(
        studies.Membership, data, members=data["rows"] // 2, false_positive_rate=0.001, networks=networks
    )


def _reproduction(data: _Old) -> Result:
    return studies.Reproduction(name=str(data.get("recipe", "membership")), findings=data)


READERS: Mapping[str, Callable[[_Old], Result]] = {
    "training": _training,
    "plain training": lambda data: _some(runs.PlainTraining, data),
    "tuning": lambda data: _some(runs.Tuning, data),
    "pate": _votes,
    "votes": _votes,
    "reports": _reports,
    "audit": _audit,
    "epidemic": _tracing,
    "ledger": _ledger,
    "plain-and-private": _comparison,
    "sweep": _sweep,
    "best-recipe": _best_recipe,
    "digits": _noised_digits,
    "differencing": _differencing,
    "membership": _membership,
    "reproduction": _reproduction,
}
