"""Teachers split over two ranks on gloo: the votes of one process, gathered."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import torch

from sfumato.pate import EnsembleFit, TeacherConfig, shard_table, vote

SCRIPT = textwrap.dedent(
    """
    import sys
    import numpy as np, torch
    from sfumato.pate import EnsembleFit, Ranks, TeacherConfig, draw_key, shard_table, vote
    from sfumato.randomness import SecretStream

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    ranks = Ranks.of_world()
    key = ranks.share_key(draw_key(SecretStream()))
    data = np.load(sys.argv[1] + "/rows.npz")
    table = shard_table(data["owner"], teachers=5, capacity=20)
    inputs = torch.from_numpy(data["inputs"])
    others = ~np.isin(data["owner"], ranks.mine(5))
    inputs[torch.from_numpy(others)] = float("nan")  # a rank needs no other teacher's rows
    votes = vote(
        inputs, torch.from_numpy(data["targets"]), table, torch.from_numpy(data["queries"]),
        TeacherConfig(kind="mlp", fit=EnsembleFit(epochs=3, batch=8)), classes=3, ranks=ranks,
    )
    np.savez(sys.argv[1] + f"/rank{ranks.rank}.npz", votes=votes, key=np.frombuffer(key, np.uint8))
    torch.distributed.destroy_process_group()
    """
)


def test_two_ranks_vote_as_one(tmp_path):
    source = np.random.Generator(np.random.PCG64(0))
    targets = source.integers(3, size=60)
    inputs = source.random((60, 1, 28, 28), dtype=np.float32) * 0.2
    inputs[np.arange(60), 0, targets * 6] += 0.8
    owner = np.arange(60) % 5
    queries = inputs[:12].copy()
    np.savez(tmp_path / "rows.npz", inputs=inputs, targets=targets, owner=owner, queries=queries)
    (tmp_path / "ranks.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(tmp_path / "ranks.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, other = (np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 1))
    config = TeacherConfig(kind="mlp", fit=EnsembleFit(epochs=3, batch=8))
    alone = vote(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        shard_table(owner, teachers=5, capacity=20),
        torch.from_numpy(queries),
        config,
        classes=3,
    )
    assert one["votes"].tolist() == other["votes"].tolist() == alone.tolist()
    assert one["key"].tolist() == other["key"].tolist()
