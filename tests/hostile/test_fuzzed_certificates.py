"""Good certificates, changed anywhere: each is verified for what it is, or refused in one sentence."""

from __future__ import annotations

import copy
import io
import json
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.accounting import (
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    ExponentialMechanismEvent,
    GaussianEvent,
    LaplaceEvent,
    MixtureOfGaussiansEvent,
    RandomizedResponseEvent,
    Relation,
    best_of,
    compose,
    event_from_json,
    poisson_sampled,
    pure,
    rdp_epsilon,
    repeat,
)
from sfumato.accounting import epsilon as exact_epsilon
from sfumato.cli import main
from sfumato.errors import SfumatoError
from sfumato.ledger import Certificate, PrivateKey
from sfumato.training import TrainingPlan

CASES = 120
PLAN = TrainingPlan(sample_rate=0.1, expected_batch=10, steps=5, noise_multiplier=2.0)
EVENTS = [
    (PLAN.event(), Relation.ADD_REMOVE),
    (compose(repeat(LaplaceEvent(20.0), 3), pure(0.1), ExponentialMechanismEvent(0.2)), Relation.ADD_REMOVE),
    (compose(DiscreteLaplaceEvent(0.5, 2), DiscreteGaussianEvent(5.0, 1)), Relation.REPLACE_ONE),
    (best_of(poisson_sampled(0.1, GaussianEvent(4.0)), 3.0), Relation.ADD_REMOVE),
    (RandomizedResponseEvent(0.5, 3), Relation.REPLACE_ONE),
    (MixtureOfGaussiansEvent(2.0, [0.0, 1.0], [0.9, 0.1]), Relation.ADD_REMOVE),
]
NUMBERS = [0, -1, 1, 7, 0.5, 1e-3, 0.999, 1e-300, 1e300, 2**53, 10**18, 10**40, -0.0, 1e9]
JUNK = [*NUMBERS, True, None, "", "x", "gaussian", "inf", "NaN", [], {}, [[]], [1, "a"], {"kind": "composed"}]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """One of each kind of event, and the first once more with a signature."""
    key = PrivateKey.create(tmp_path_factory.mktemp("keys") / "holder")
    plans = [PLAN.to_json(), *({} for _ in EVENTS[1:])]
    made = [
        Certificate.of(event, purpose="a release", delta=1e-5, relation=relation, plan=plan)
        for (event, relation), plan in zip(EVENTS, plans, strict=True)
    ]
    return [json.loads(json.dumps(one.to_json())) for one in (*made, made[0].signed(key))]


def places(value, path=()):
    """Where every value inside a JSON value lies."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def mutated(draw, data):
    """`data` with one place replaced, removed, doubled, put inside itself, or a number changed a little."""
    *before, last = draw(st.sampled_from([path for path in places(data) if path]))
    parent = at(data, before)
    old = parent[last]
    change = draw(st.sampled_from(["junk", "remove", "double", "nest", "scale", "copy"]))
    if change == "remove":
        del parent[last]
    elif change == "double":
        parent[last] = [copy.deepcopy(old), copy.deepcopy(old)]
    elif change == "nest":
        parent[last] = {"kind": "repeated", "count": draw(st.sampled_from([1, 2, 10**6, 10**13])), "event": old}
    elif change == "scale" and isinstance(old, int | float) and not isinstance(old, bool):
        parent[last] = old * draw(st.sampled_from([0.5, 0.999, 1.001, 2, 1e6]))
    elif change == "copy":
        parent[last] = copy.deepcopy(at(data, draw(st.sampled_from(list(places(data))))))
    else:
        parent[last] = copy.deepcopy(draw(st.sampled_from(JUNK)))  # or a later change would reach it
    return data


def verify(text: str) -> tuple[int, str]:
    """The exit code and standard error of `sfumato verify`; what is no exit is a traceback, and raised."""
    err = io.StringIO()
    with (
        tempfile.NamedTemporaryFile("w", suffix=".json") as file,
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()),
        redirect_stderr(err),
    ):
        Path(file.name).write_text(text)
        patch.setattr(sys, "argv", ["sfumato", "verify", file.name])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0), err.getvalue()
    return 0, err.getvalue()


def price(accountant, data):
    event, relation = event_from_json(data["event"]), Relation(data["relation"])
    try:
        return accountant(event, data["delta"], relation=relation)
    except (SfumatoError, ValueError, ArithmeticError, RecursionError):
        return None


def check(data):
    code, said = verify(json.dumps(data))
    if code == 0:
        stated = [(data["epsilon"]["pld"], exact_epsilon), (data["epsilon"]["rdp"], rdp_epsilon)]
        known = [(value, price(accountant, data)) for value, accountant in stated if value is not None]
        assert known
        assert all(true is not None and value >= true * (1 - 1e-3) - 1e-8 for value, true in known)
    else:
        assert code == 1
        assert said.startswith("sfumato: ")
        assert said.count("\n") == 1
        assert len(said) < 1000


@pytest.mark.keeps_out("A hostile certificate that breaks the verifier, or keeps it busy for hours")
@settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_changed_certificate_is_verified_for_what_it_is_or_refused_in_a_sentence(certificates, data):
    text = copy.deepcopy(data.draw(st.sampled_from(certificates)))
    for _ in range(data.draw(st.integers(0, 3))):
        text = mutated(data.draw, text)
    check(text)


@settings(max_examples=CASES, deadline=None)
@given(content=st.binary(max_size=60))
def test_any_bytes_are_refused_in_a_sentence(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        path.write_bytes(content)
        with pytest.raises(SfumatoError):
            Certificate.read(path)
