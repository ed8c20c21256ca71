"""Settings of a run of other software: read from a file that is never run, and looked up by their meaning."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sfumato import _validate
from sfumato.accounting import Relation
from sfumato.errors import InvalidInput

LARGEST_FILE = 2**18
MOST_SETTINGS = 10_000
DEEPEST = 20
"""The most levels of tables inside each other."""

Setting = tuple[str, Any]
"""The last name on the way to a value, in snake case, and the value."""


def read_settings(path: str | os.PathLike[str]) -> list[Setting]:
    """Return all single values of a file in their order, with names in snake case.

    Args:
        path: A file that ends in .json, .toml, .yaml or .yml.

    Returns:
        The names and values.

    Raises:
        InvalidInput: If the file is of another kind, too large, or cannot be read as its kind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = Path(folder, "run.json")
    ...     _ = place.write_text('{"privacy": {"maxGradNorm": 1.0}}')
    ...     read_settings(place)
    [('max_grad_norm', 1.0)]
    """
    place = Path(path)
    form = place.suffix.lower().removeprefix(".")
    if form not in _PARSERS:
        raise InvalidInput(f"expected a file that ends in {', '.join(_PARSERS)}, got {place.name!r}")
    with place.open("rb") as file:
        raw = file.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise InvalidInput(f"expected settings of at most {LARGEST_FILE} bytes, got more in {place.name!r}")
    try:
        return parse_settings(raw.decode("utf-8-sig"), form)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"expected text in UTF-8 in {place.name!r}, got other bytes") from error


def parse_settings(text: str, form: str) -> list[Setting]:
    """Return the same of a text; `form` is "json", "toml", "yaml" or "yml"."""
    if form not in _PARSERS:
        raise InvalidInput(f"expected settings as {', '.join(_PARSERS)}, got {form[:20]!r}")
    try:
        value = _PARSERS[form](text)
    except InvalidInput:
        raise
    except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        place = f" in line {line}" if isinstance(line, int) else ""
        raise InvalidInput(
            f"expected settings in {form.upper()}, got a text that is none ({type(error).__name__}{place}); "
            "mend it, or give the settings with --set"
        ) from error
    return list(_flattened(value))


def _once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a table in which no name stands twice: only its owner knows the value that the run used."""
    found: dict[Any, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidInput(
                f"expected each name once in a table, got {str(name)[:40]!r} twice; keep what the run used"
            )
        found[name] = value
    return found


def _yaml(text: str) -> Any:
    import yaml  # slow to import, and needed for one kind of file

    class OnceLoader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            self.flatten_mapping(node)
            return _once(
                (self.construct_object(key, deep=True), self.construct_object(value, deep=True))
                for key, value in node.value
            )

    depth = 0
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise InvalidInput("expected YAML without aliases, got one; write each value out")
            kind = type(token).__name__
            depth += kind.endswith("StartToken") - kind.endswith("EndToken")
            if depth > DEEPEST:  # before it is parsed: that takes time with the square of the depth
                raise _too_much()
        return OnceLoader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ValueError("not YAML") from error


_PARSERS: dict[str, Callable[[str], Any]] = {
    "json": lambda text: json.loads(text, object_pairs_hook=_once),
    "toml": tomllib.loads,
    "yaml": _yaml,
    "yml": _yaml,
}


def _flattened(value: Any) -> Iterator[Setting]:
    """Yield single values in the order of the file; a list's values take the name of the list."""
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    found = 0
    while waiting:
        name, item, depth = waiting.pop()
        found += 1
        if found > MOST_SETTINGS or depth > DEEPEST:
            raise _too_much()
        if isinstance(item, dict):
            waiting += [(snake_case(str(key)), inner, depth + 1) for key, inner in reversed(item.items())]
        elif isinstance(item, list | tuple | set):
            waiting += [(name, inner, depth + 1) for inner in reversed(list(item))]
        elif name:
            yield name, item


def _too_much() -> InvalidInput:
    return InvalidInput(
        f"expected at most {MOST_SETTINGS} settings and {DEEPEST} levels of tables, got more; keep those "
        "about privacy"
    )


def snake_case(name: str) -> str:
    """
    >>> snake_case("maxGradNorm"), snake_case("num-server-rounds"), snake_case("L2 norm clip")
    ('max_grad_norm', 'num_server_rounds', 'l2_norm_clip')
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^0-9a-z]+", "_", apart.lower()).strip("_")


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
_MEANINGS = {name: meaning for meaning, names in NAMES.items() for name in names}
_RELATIONS = {
    Relation.ADD_REMOVE: ("add_remove", "add_or_remove_one", "add_or_remove", "addremove", "unbounded"),
    Relation.REPLACE_ONE: (
        "replace_one", "replace", "replacement", "substitute", "substitute_one", "substitution", "change_one",
        "swap", "edit", "bounded",
    ),
    Relation.ZERO_OUT: ("zero_out", "zeroed_out", "replace_special", "replace_with_null", "null"),
}  # fmt: skip
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Settings:
    """Look up the settings of one run by meaning; two values of one meaning are refused, unknown names listed.

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
            elif value is not None and not _same(self._values.setdefault(meaning, value), value):
                raise InvalidInput(
                    f"expected one value of {meaning}, got {_validate.shown(self._values[meaning])} and "
                    f"{name}={_validate.shown(value)}; write the run's settings into a file of its own"
                )
        self.ignored = tuple(unknown)

    def has(self, *meanings: str) -> bool:
        return all(meaning in self._values for meaning in meanings)

    def mentions(self, *words: str) -> bool:
        """Return whether some text of the file holds one of the words, as the path of a class does."""
        return any(word in self._words for word in words)

    def text(self, meaning: str) -> str | None:
        value = self._values.get(meaning)
        return None if value is None else str(value)[:200]

    def word(self, meaning: str) -> str | None:
        """Return a text in small letters, its last part after a dot, with underscores."""
        text = self.text(meaning)
        return None if text is None else text.strip().lower().replace("-", "_").replace(" ", "_")

    def flag(self, meaning: str) -> bool | None:
        value = self._values.get(meaning)
        if value is None or isinstance(value, bool):
            return value
        return str(_validate.one_of(meaning, str(value).lower(), (*_TRUE, *_FALSE))) in _TRUE

    def number(self, meaning: str) -> float | None:
        """Return a finite number; YAML reads 1e-5 as a text, so a text that is a number counts as one."""
        value = self._values.get(meaning)
        if value is None:
            return None
        if isinstance(value, str):
            try:
                value = float(value.replace("_", "").replace(",", ""))
            except ValueError:
                value = math.nan
        return _validate.real(meaning, value, remedy=f"names that mean {meaning}: {', '.join(NAMES[meaning])}")

    def required(self, meaning: str, default: float | None = None) -> float:
        value = self.number(meaning)
        value = default if value is None else value
        if value is None:
            raise InvalidInput(
                f"expected {meaning} among the settings, got none; name it one of: {', '.join(NAMES[meaning])}"
            )
        return value

    def non_negative(self, meaning: str) -> float:
        return _validate.non_negative(meaning, self.required(meaning))

    def positive(self, meaning: str, default: float | None = None) -> float:
        return _validate.positive(meaning, self.required(meaning, default))

    def whole(self, meaning: str, default: int | None = None) -> int:
        """Return a whole number of at least 1, and less than a million million."""
        value = self.required(meaning, default)
        if value != math.floor(value) or not 1 <= value < 1e12:
            raise InvalidInput(
                f"expected {meaning} to be a whole number from 1 to 1e12, got {meaning}={value:g}"
            )
        return int(value)

    def delta(self, *, above_zero: bool = False) -> float:
        delta = _validate.delta("delta", self.required("delta"))
        if above_zero and not delta:
            raise InvalidInput("expected delta > 0 for Gaussian noise, got delta=0; take the δ of the settings")
        return delta

    def claimed(self) -> float | None:
        """Return the ε that was claimed, by either name; 0 or more."""
        name = "claimed_epsilon" if self.has("claimed_epsilon") else "epsilon"
        value = self.number(name)
        return None if value is None else _validate.non_negative(name, value)

    def relation(self) -> Relation | None:
        """Return the relation that the claim names; None where it names none."""
        word = self.word("relation")
        if word is None:
            return None
        for relation, words in _RELATIONS.items():
            if word.rpartition(".")[2] in words:
                return relation
        raise InvalidInput(
            "expected relation to be add-remove, replace-one or zero-out, got "
            f"relation={_validate.shown(self.text('relation'))}; say which data sets the claimed ε calls "
            "neighbours"
        )


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(float(one) == float(other))
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)
