"""Two ranks on gloo: one release, noise once, the same weights on both."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = textwrap.dedent(
    """
    import json, os, sys
    import torch
    from torch import nn
    from torch.nn import functional as F
    from sfumato.accounting import Budget
    from sfumato.ledger import Ledger
    from sfumato.randomness import SecretStream
    from sfumato.training import Peers, PrivateTrainer, TrainingPlan

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    peers = Peers.of_world(sharded=True)
    mode, folder = sys.argv[1:]
    torch.default_generator.manual_seed(0)
    model = nn.Linear(4, 3)
    plan = TrainingPlan(sample_rate=1.0, expected_batch=40, steps=3, noise_multiplier=1.0, clip_norm=1.0)

    class Counting(SecretStream):
        draws = 0
        def rounded_normal(self, scale, size):
            Counting.draws += 1
            return super().rounded_normal(scale, size)

    ledger = None
    if peers.leads:
        epsilon = 0.01 if mode == "refused" else 100
        ledger = Ledger.open(folder + "/ledger.db", budget=Budget(epsilon=epsilon, delta=1e-5))
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), plan, ledger=ledger, sampler=Counting(), peers=peers
    )
    generator = torch.Generator().manual_seed(peers.rank)
    data = torch.randn(20, 4, generator=generator), torch.randint(0, 3, (20,), generator=generator)
    for batch in trainer.batches(data):
        if mode == "dies" and peers.rank == 1 and batch.step == 1:
            os._exit(9)
        trainer.step(batch, lambda o, t: F.cross_entropy(o, t, reduction="none"))
    report = {
        "rank": peers.rank,
        "draws": Counting.draws,
        "weights": model.weight.detach().flatten().tolist(),
        "units": [step.units for step in trainer.private_log.steps],
        "spent": None if ledger is None else ledger.epsilon_spent,
        "plan": plan.epsilon(1e-5),
    }
    with open(f"{folder}/rank{peers.rank}.json", "w") as file:
        json.dump(report, file)
    torch.distributed.destroy_process_group()
    """
)


def launch(mode, folder):
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    return subprocess.run(
        [*command, mode, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_two_ranks_release_once(tmp_path):
    done = launch("runs", tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    assert (first["draws"], second["draws"]) == (3, 0)
    assert first["units"] == second["units"] == [20, 20, 20]
    assert first["spent"] == pytest.approx(first["plan"])


def test_a_rank_that_dies_fails_the_run_and_leaves_the_ledger_charged(tmp_path):
    from sfumato.ledger import Ledger

    done = launch("dies", tmp_path)
    assert done.returncode != 0
    assert not (tmp_path / "rank0.json").exists()
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.epsilon_spent > 0
        assert [charge.settled for charge in ledger.charges()] == [False]


def test_a_refusal_stops_every_rank(tmp_path):
    done = launch("refused", tmp_path)
    assert done.returncode != 0
    assert "BudgetExceeded" in done.stderr
    assert not list(tmp_path.glob("rank*.json"))
