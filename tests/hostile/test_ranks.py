"""Several processes that hold the same people twice, or disagree: refused on every rank, before the charge."""

import json
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidInput
from sfumato.training import data, distributed

KEY = bytes(32)

SCRIPT = textwrap.dedent(
    """
    import datetime, hashlib, json, os, sys
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F
    from sfumato.accounting import Budget
    from sfumato.errors import SfumatoError
    from sfumato.ledger import Ledger
    from sfumato.randomness import SecretStream
    from sfumato.training import Peers, PrivateTrainer, TrainingPlan, resume, save_checkpoint

    folder, rank = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    PLAN = dict(sample_rate=1.0, expected_batch=40, steps=2, noise_multiplier=1.0)
    CASES = {}

    def case(function):
        CASES[function.__name__] = function
        return function

    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")

    def rows(seed, count=40):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)

    class Items:
        def __init__(self, data):
            self.data = data
        def __len__(self):
            return len(self.data[0])
        def __getitem__(self, row):
            return self.data[0][row], self.data[1][row]

    class NoNoise(SecretStream):
        def rounded_normal(self, scale, size):
            return np.zeros(size, dtype=np.int64)

    def run(
        data, *, plan=None, model=None, sampler=None, sharded=False, loss_fn=loss, units=None, ledger=0,
        begin=lambda trainer: None, after=lambda trainer: None,
    ):
        peers = Peers.of_world(sharded=sharded)
        torch.default_generator.manual_seed(rank)  # first weights differ
        model = nn.Linear(4, 3) if model is None else model
        plan = TrainingPlan(**{**PLAN, **(plan or {})})
        budget = Budget(epsilon=100, delta=1e-5, unit=plan.unit)
        book = Ledger.open(f"{folder}/{name}-{rank}.db", budget=budget)
        has = ledger == rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = PrivateTrainer(
            model, optimizer, plan, ledger=book if has else None, sampler=sampler, peers=peers
        )
        try:
            begin(trainer)
            for batch in trainer.batches(data, units=units):
                trainer.step(batch, loss_fn)
                after(trainer)
            error = None
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        return {
            "error": error,
            "units": [step.units for step in trainer.private_log.steps],
            "weights": [value.detach().flatten().tolist() for value in model.state_dict().values()],
            "steps": trainer.steps_done,
            "spent": book.epsilon_spent,
        }

    # What people do

    @case
    def everybody_holds_everything():
        return run(rows(0))

    @case
    def everybody_holds_all_rows_of_all_people():
        plan = dict(unit="person", rows_per_unit=2, expected_batch=20)
        return run(rows(0), units=[f"p{i // 2}" for i in range(40)], plan=plan)

    @case
    def equal_rows():
        return run((torch.ones(40, 4), torch.ones(40, dtype=torch.int64)))

    @case
    def own_people():
        return run(rows(rank, 20), sharded=True)

    @case
    def named_items():
        return run(Items(rows(0)), units=range(40), plan=dict(rows_per_unit=1))

    @case
    def buffers_that_differ():
        class Shifted(nn.Linear):
            def __init__(self):
                super().__init__(4, 3)
                self.register_buffer("shift", torch.tensor(float(rank)))
            def forward(self, inputs):
                return super().forward(inputs + self.shift)
        return run(rows(0), model=Shifted())

    @case
    def goes_on_from_a_checkpoint():
        place = f"{folder}/checkpoint"
        def stop(trainer):
            if trainer.peers.leads:
                save_checkpoint(trainer, place)
            torch.distributed.barrier()
            raise KeyError("stopped")
        first = run(rows(0), after=stop)
        assert first["steps"] == 1, first
        second = run(rows(0), begin=lambda trainer: resume(trainer, place))
        return {**second, "units": first["units"] + second["units"]}

    @case
    def goes_on_from_what_the_first_rank_names():
        # A process died before its checkpoint got its name: rank 0 renames it while others look for it.
        place = f"{folder}/unnamed"
        def stop(trainer):
            if trainer.peers.leads:
                save_checkpoint(trainer, place)
                content = open(place, "rb").read()
                os.rename(place, f"{folder}/.unnamed.{hashlib.sha256(content).hexdigest()}.staged")
            torch.distributed.barrier()
            raise KeyError("stopped")
        first = run(rows(0), after=stop)
        second = run(rows(0), begin=lambda trainer: resume(trainer, place))
        return {**second, "units": first["units"] + second["units"]}

    # What must be refused on both ranks before the charge

    @case
    def the_same_people_called_sharded():
        return run(rows(0), sharded=True)

    @case
    def one_person_on_both():
        units = list(range(rank * 20, rank * 20 + 20)) if rank == 0 else [0, *range(21, 40)]
        return run(rows(rank, 20), sharded=True, units=units, plan=dict(unit="person", rows_per_unit=1))

    @case
    def other_data():
        return run(rows(rank))

    @case
    def one_row_is_other():
        inputs, targets = rows(0)
        inputs[3, 1] += rank
        return run((inputs, targets))

    @case
    def one_says_sharded():
        return run(rows(rank), sharded=rank == 0)

    @case
    def other_plan():
        return run(rows(0), plan=dict(clip_norm=1.0 + rank))

    @case
    def other_noise():
        return run(rows(0), plan=dict(noise_multiplier=1.0 + rank))

    @case
    def other_steps():
        return run(rows(0), plan=dict(steps=2 + rank))

    @case
    def other_model():
        return run(rows(0), model=nn.Linear(4, 3, bias=rank == 0))

    @case
    def other_precision():
        return run(rows(0), model=nn.Linear(4, 3, dtype=torch.float64 if rank else torch.float32))

    @case
    def other_layout():
        inputs, targets = rows(0)
        return run((inputs if rank else inputs.double(), targets))

    @case
    def seeded_on_one():
        return run(rows(0), sampler=SecretStream(test_seed=1) if rank else None)

    @case
    def broken_data_on_one():
        inputs, targets = rows(0)
        return run((inputs, targets[: len(targets) - rank]))

    @case
    def nameless_items():
        return run(Items(rows(0)))

    @case
    def ledger_on_the_wrong_rank():
        return run(rows(0), ledger=1)

    @case
    def one_goes_on_and_one_begins():
        place = f"{folder}/other"
        def stop(trainer):
            if trainer.peers.leads:
                save_checkpoint(trainer, place)
            torch.distributed.barrier()
            raise KeyError("stopped")
        run(rows(0), after=stop, ledger=None)
        return run(rows(0), ledger=None, begin=lambda trainer: resume(trainer, place) if rank else None)

    @case
    def the_first_goes_on_and_one_begins():
        place = f"{folder}/other"
        return run(rows(0), ledger=None, begin=lambda trainer: None if rank else resume(trainer, place))

    @case
    def the_first_cannot_go_on():
        place = f"{folder}/nowhere"
        return run(rows(0), ledger=None, begin=lambda trainer: resume(trainer, place))

    # What breaks later

    @case
    def breaks_in_the_middle():
        def break_second_step(trainer):
            check = trainer._check_rounding
            def breaks(result):
                if rank == 1 and trainer.steps_done == 1:
                    raise ValueError("broken")
                check(result)
            trainer._check_rounding = breaks
        return run(rows(0), begin=break_second_step)

    @case
    def no_noise_on_the_first_rank():
        return run(rows(0), sampler=NoNoise())

    found = {}
    for name, function in CASES.items():
        found[name] = function()
    with open(f"{folder}/rank{rank}.json", "w") as file:
        json.dump(found, file)
    torch.distributed.destroy_process_group()
    """
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Every case on two processes of one group: {case: (what rank 0 saw, what rank 1 saw)}."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "ranks.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    started = [
        subprocess.Popen(
            [sys.executable, str(folder / "ranks.py"), str(folder), str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=240)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(errors)
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1))
    return {name: (first[name], second[name]) for name in first}


@pytest.mark.keeps_out(
    "Ranks that resume from different files, or one that resumes beside one that begins and both wait for ever"
)
@pytest.mark.keeps_out("The same people on every rank, each clipped on its own")
@pytest.mark.parametrize(
    ("case", "units"),
    [
        ("everybody_holds_everything", 40),
        ("everybody_holds_all_rows_of_all_people", 20),
        ("equal_rows", 40),
        ("own_people", 40),
        ("named_items", 40),
        ("buffers_that_differ", 40),
        ("goes_on_from_a_checkpoint", 40),
        ("goes_on_from_what_the_first_rank_names", 40),
    ],
)
def test_each_unit_is_worked_on_once_a_step_from_the_same_weights(found, case, units):
    first, second = found[case]
    assert (first["error"], second["error"]) == (None, None)
    assert [one + other for one, other in zip(first["units"], second["units"], strict=True)] == [units] * 2
    assert first["weights"] == second["weights"]
    assert first["spent"] > 0
    assert second["spent"] == 0


def test_equal_rows_are_dealt_evenly(found):
    assert found["equal_rows"][0]["units"] == [20, 20]


@pytest.mark.keeps_out(
    "Ranks that resume from different files, or one that resumes beside one that begins and both wait for ever"
)
@pytest.mark.keeps_out("The same people on every rank, each clipped on its own")
@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("the_same_people_called_sharded", "share no unit"),
        ("one_person_on_both", "share no unit"),
        ("other_data", "same data on every rank"),
        ("one_row_is_other", "same data on every rank"),
        ("one_says_sharded", "same sharded on every rank"),
        ("other_plan", "same plan on every rank"),
        ("other_noise", "same plan on every rank"),
        ("other_steps", "same plan on every rank"),
        ("other_model", "same model on every rank"),
        ("other_precision", "same model on every rank"),
        ("other_layout", "same data layout on every rank"),
        ("one_goes_on_and_one_begins", "every rank to resume, or none"),
        ("the_first_goes_on_and_one_begins", "every rank to resume, or none"),
        ("the_first_cannot_go_on", "expected a checkpoint|rank 0 failed to take the run up"),
        ("seeded_on_one", "same privacy of the sampler on every rank"),
        ("nameless_items", r"units=range"),
        ("broken_data_on_one", "rank 1|equal length"),
        ("ledger_on_the_wrong_rank", "ledger"),
    ],
)
def test_refused_on_every_rank_and_nothing_is_spent(found, case, sentence):
    for seen in found[case]:
        assert seen["error"] is not None
        assert re.search(sentence, seen["error"])
        assert (seen["spent"], seen["units"]) == (0, [])


@pytest.mark.keeps_out("A rank that fails while the others release")
@pytest.mark.parametrize(
    ("case", "steps", "own"),
    [("breaks_in_the_middle", 1, "ValueError: broken"), ("no_noise_on_the_first_rank", 0, "no noise")],
)
def test_a_rank_that_fails_stops_all_of_them_and_its_step_is_never_released(found, case, steps, own):
    first, second = found[case]
    failed, other = (second, first) if case == "breaks_in_the_middle" else (first, second)
    assert own in failed["error"]
    assert "all ranks stopped" in other["error"]
    assert first["weights"] == second["weights"]
    assert first["steps"] == second["steps"] == steps
    assert first["spent"] > 0  # what was reserved stays spent until it is settled


# Who owns whom


def owner_by_row(values, ranks):
    digests = data._stacked([data.keyed(bytes([value]), KEY) for value in values])
    return distributed._owners(digests, ranks)


@given(values=st.lists(st.integers(0, 5), min_size=1, max_size=30), ranks=st.integers(1, 5), data=st.data())
def test_a_record_that_leaves_moves_no_other(values, ranks, data):
    """(row, owner) pairs of neighbours differ in one pair, however many rows are equal."""
    gone = data.draw(st.integers(0, len(values) - 1))
    before = sorted(zip(values, owner_by_row(values, ranks).tolist(), strict=True))
    rest = values[:gone] + values[gone + 1 :]
    after = sorted(zip(rest, owner_by_row(rest, ranks).tolist() if rest else [], strict=True))
    for pair in after:
        before.remove(pair)
    assert len(before) == 1


@given(values=st.lists(st.integers(0, 5), min_size=1, max_size=30), ranks=st.integers(1, 5), data=st.data())
def test_the_order_of_rows_moves_nobody(values, ranks, data):
    shuffled = data.draw(st.permutations(values))
    pairs = [sorted(zip(rows, owner_by_row(rows, ranks).tolist(), strict=True)) for rows in (values, shuffled)]
    assert pairs[0] == pairs[1]


def test_another_key_deals_anew():
    names = np.arange(200)
    one, other = (distributed._owners(data.name_digests(names, key), 2) for key in (KEY, bytes(31) + b"\x01"))
    assert 60 < (one != other).sum() < 140  # 100 ± 7: false alarms below 1e-7
    assert 60 < one.sum() < 140


def test_ids_of_another_kind_are_other_ids():
    assert not np.array_equal(data.name_digests(np.array([1]), KEY), data.name_digests(np.array(["1"]), KEY))


def test_rows_of_an_empty_rank():
    empty = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    assert data.row_digests(empty, KEY).shape == (0, data.DIGEST)
    with pytest.raises(InvalidInput, match="share no unit"):
        distributed._require_disjoint([np.zeros((1, 16), np.uint8)] * 2)
