"""Settings of a run of other software, looked up by what they mean: every library has its own word for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sfumato import _validate
from sfumato.accounting import Relation
from sfumato.errors import InvalidInput
from sfumato.governance.outside.reading import Setting, snake_case

NAMES: dict[str, tuple[str, ...]] = {
    "library": ("library", "framework", "software", "tool", "package"),
    "claimed_epsilon": (
        "claimed_epsilon", "reported_epsilon", "printed_epsilon", "final_epsilon", "epsilon_claimed",
    ),
    "epsilon": ("epsilon", "eps", "target_epsilon", "epsilon_spent"),
    "delta": ("delta", "target_delta"),
    "noise_multiplier": ("noise_multiplier", "sigma", "noise"),
    "size": (
        "size", "dataset_size", "data_size", "train_size", "training_size", "sample_size", "public_size", "n",
        "examples", "num_examples", "number_of_examples", "num_train_examples", "n_train", "num_samples",
        "records",
    ),
    "batch": ("batch_size", "expected_batch_size", "expected_batch", "logical_batch_size", "lot_size", "batch"),
    "sample_rate": ("sample_rate", "sampling_rate", "sampling_probability", "q"),
    "epochs": ("epochs", "num_epochs", "n_epochs", "num_train_epochs"),
    "steps": ("steps", "num_steps", "iterations", "num_iterations", "num_updates", "train_steps", "max_steps"),
    "rounds": ("rounds", "num_rounds", "num_server_rounds", "server_rounds"),
    "poisson": ("poisson_sampling", "poisson"),
    "sampling": ("sampling", "sampler", "batching", "batch_selection"),
    "shuffle": ("shuffle", "shuffled"),
    "microbatches": ("num_microbatches", "microbatches"),
    "runs": ("runs", "trials", "num_trials", "hyperparameter_trials", "restarts"),
    "secure": ("secure_mode", "secure_rng"),
    "seed": ("seed", "noise_seed", "random_seed", "manual_seed"),
    "relation": ("relation", "neighbours", "neighboring_relation", "neighbors", "adjacency"),
    "sensitivity": ("sensitivity",),
    "clip_norm": ("clipping_norm", "max_grad_norm", "l2_norm_clip", "l2_clip_norm", "clip_norm", "max_norm"),
    "clients": ("num_clients", "clients", "total_clients", "num_supernodes"),
    "sampled_clients": ("num_sampled_clients", "sampled_clients", "clients_per_round", "min_fit_clients"),
    "parameters": ("parameters", "num_parameters", "model_parameters", "model_size", "num_weights"),
    "fraction": ("fraction",),
    "release_noise": ("noise_var",),
    "queries": ("queries", "num_queries", "labels", "asked"),
    "teachers": ("teachers", "num_teachers", "nb_teachers"),
    "query_noise": ("noise_eps", "noise_epsilon", "lap_inverse_scale", "epsilon_per_query", "gamma"),
    "releases": ("releases", "redraws", "times_released"),
    "unit": ("unit", "privacy_unit"),
}  # fmt: skip


class Settings:
    """What is known of one run; two values for the same thing are refused, and what nobody asked for is listed.

    Args:
        values: Names and values, as `read_settings` gives them or from options.

    >>> run = Settings([("max_grad_norm", 1.0), ("lr", 0.05)])
    >>> run.positive("clip_norm"), run.ignored
    (1.0, ('lr',))
    """

    def __init__(self, values: Sequence[Setting]) -> None:
        self._values: dict[str, Any] = {}
        self._words = " ".join(str(value) for _, value in values if isinstance(value, str)).lower()
        unknown: dict[str, None] = {}
        for name, value in values:
            meaning = _MEANINGS.get(snake_case(name))
            if meaning is None:
                unknown[name] = None
            elif value is not None:
                self._put(meaning, name, value)
        self.ignored = tuple(unknown)

    def _put(self, meaning: str, name: str, value: Any) -> None:
        if meaning in self._values and not _same(self._values[meaning], value):
            raise InvalidInput(
                f"expected one value of {meaning}, got {_validate.shown(self._values[meaning])} and "
                f"{name}={_validate.shown(value)}; write the run's settings into a file of its own"
            )
        self._values[meaning] = value

    def has(self, *meanings: str) -> bool:
        return all(meaning in self._values for meaning in meanings)

    def mentions(self, *words: str) -> bool:
        """Whether some text of the file holds one of the words, as the path of a class does."""
        return any(word in self._words for word in words)

    def text(self, meaning: str) -> str | None:
        value = self._values.get(meaning)
        return None if value is None else str(value)[:200]

    def flag(self, meaning: str) -> bool | None:
        value = self._values.get(meaning)
        if value is None or isinstance(value, bool):
            return value
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        if str(value).lower() not in words:
            raise InvalidInput(
                f"expected {meaning} to be true or false, got {meaning}={_validate.shown(value)}"
            )
        return words[str(value).lower()]

    def number(self, meaning: str) -> float | None:
        """A finite number; YAML reads 1e-5 as a text, so a text that is a number counts as one."""
        value = self._values.get(meaning)
        if value is None:
            return None
        if isinstance(value, str):
            try:
                value = float(value.replace("_", "").replace(",", ""))
            except ValueError:
                value = math.nan
        return _validate.real(meaning, value, remedy=f"names that mean {meaning}: {', '.join(NAMES[meaning])}")

    def non_negative(self, meaning: str, default: float | None = None) -> float:
        value = self._required(meaning, default)
        return _validate.non_negative(meaning, value)

    def positive(self, meaning: str, default: float | None = None) -> float:
        return _validate.positive(meaning, self._required(meaning, default))

    def whole(self, meaning: str, default: int | None = None) -> int:
        """A whole number of at least 1, and less than a million million."""
        value = self._required(meaning, default)
        if value != math.floor(value) or not 1 <= value < 1e12:
            raise InvalidInput(
                f"expected {meaning} to be a whole number from 1 to 1e12, got {meaning}={value:g}"
            )
        return int(value)

    def delta(self) -> float:
        return _validate.delta("delta", self._required("delta", None))

    def relation(self) -> Relation | None:
        """Which data sets the claim calls neighbours; None where it does not say."""
        word = self.text("relation")
        if word is None:
            return None
        plain = word.strip().lower().replace("-", "_").replace(" ", "_").rpartition(".")[2]
        for relation, words in _RELATIONS.items():
            if plain in words:
                return relation
        raise InvalidInput(
            "expected relation to be add-remove, replace-one or zero-out, got "
            f"relation={_validate.shown(word)}; say which data sets the claimed ε calls neighbours"
        )

    def _required(self, meaning: str, default: float | None) -> float:
        value = self.number(meaning)
        if value is None:
            value = default
        if value is None:
            raise InvalidInput(
                f"expected {meaning} among the settings, got none; name it one of: {', '.join(NAMES[meaning])}"
            )
        return value


_RELATIONS = {
    Relation.ADD_REMOVE: ("add_remove", "add_or_remove_one", "add_or_remove", "addremove", "unbounded"),
    Relation.REPLACE_ONE: (
        "replace_one", "replace", "replacement", "substitute", "substitute_one", "substitution", "change_one",
        "swap", "edit", "bounded",
    ),
    Relation.ZERO_OUT: ("zero_out", "zeroed_out", "replace_special", "replace_with_null", "null"),
}  # fmt: skip
_MEANINGS = {name: meaning for meaning, names in NAMES.items() for name in names}


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(float(one) == float(other))
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)
