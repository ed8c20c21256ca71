"""What tests share: a slow oracle for gradients, and the three query engines, each a real one."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import ibis
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils import _pytree as pytree
from xdist.scheduler import LoadFileScheduling

from sfumato.query.engines import Engine
from sfumato.randomness import public_generator


class _Files(LoadFileScheduling):
    """A file's tests go to one worker, which makes its fixtures once; all tests of Spark share one engine."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if "spark" in nodeid.lower() else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return _Files(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Nets this small gain nothing from a second thread, and lose much where tests run side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _clipped_by_loop(model, loss_fn, inputs, targets, clip_norm, units=None):
    """The definition itself: one unit at a time through plain autograd, clipped in float64."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in named.items()}
    units = torch.arange(len(pytree.tree_leaves(targets)[0])) if units is None else units
    for unit in units.unique():
        rows = units == unit
        both = (inputs, targets)
        given, wanted = pytree.tree_map_only(torch.Tensor, lambda leaf, rows=rows: leaf[rows], both)
        if isinstance(given, dict):
            outputs = model(**given)
        else:
            outputs = model(*given) if isinstance(given, tuple) else model(given)
        loss = loss_fn(outputs, wanted).sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        gradients = {n: g.double() for n, g in zip(named, found, strict=True) if g is not None}
        norm = float(torch.cat([g.flatten() for g in gradients.values()]).norm())
        for name, gradient in gradients.items():
            total[name] += min(1.0, clip_norm / max(norm, 1e-300)) * gradient
    return total


def _distance(ours, oracle):
    """Relative error over all parameters together."""
    assert set(ours) == set(oracle)
    assert all(ours[name].shape == oracle[name].shape for name in oracle)
    error = torch.stack([(ours[name].double() - oracle[name]).norm() for name in oracle]).norm()
    return float(error / torch.stack([value.norm() for value in oracle.values()]).norm().clamp_min(1e-30))


@pytest.fixture(scope="session")
def clipped_by_loop():
    return _clipped_by_loop


@pytest.fixture(scope="session")
def distance():
    return _distance


Load = Callable[[pd.DataFrame], Engine]
_BINARIES = "/usr/lib/postgresql"


@pytest.fixture(scope="session")
def duckdb_engine() -> Load:
    connection = ibis.duckdb.connect()

    def load(frame: pd.DataFrame) -> Engine:
        return Engine("duckdb", connection, connection.create_table("raw", frame, overwrite=True))

    return load


def _binaries() -> Path:
    found = sorted(Path(_BINARIES).glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    return found[-1].parent if found else Path(str(on_path)).parent


def _server_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    import pwd

    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    pytest.skip("no user but root to run PostgreSQL as; on Debian: apt-get install postgresql")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    binaries, user = _binaries(), _server_user()
    with tempfile.TemporaryDirectory(prefix="sfumato-pg-") as folder:
        if user is not None:
            shutil.chown(folder, user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        data = f"{folder}/data"

        def run(*command: str) -> None:
            subprocess.run(command, user=user, check=True, capture_output=True, cwd=folder)

        run(f"{binaries}/initdb", "-D", data, "-A", "trust", "-U", "tester", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run(f"{binaries}/pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgres://tester@127.0.0.1:{port}/postgres"
        finally:
            run(f"{binaries}/pg_ctl", "-D", data, "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def postgres_engine(postgres_url: str) -> Load:
    pytest.importorskip("psycopg", reason="pip install 'sfumato[postgres]'")
    connection = ibis.connect(postgres_url)

    def load(frame: pd.DataFrame) -> Engine:
        return Engine("postgres", connection, connection.create_table("raw", frame, overwrite=True))

    return load


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[Load]:
    pyspark = pytest.importorskip("pyspark", reason="pip install 'sfumato[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java; on Debian: apt-get install openjdk-17-jre-headless")
    with tempfile.TemporaryDirectory(prefix="sfumato-spark-") as folder:
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.default.parallelism": "1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.sql.session.timeZone": "UTC",
        }
        builder = pyspark.sql.SparkSession.builder.master("local[1]").appName(f"tests of {getpass.getuser()}")
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        connection = ibis.pyspark.connect(session)
        count = iter(range(1_000_000))

        def load(frame: pd.DataFrame) -> Engine:
            path = f"{folder}/{next(count)}.parquet"
            frame.to_parquet(path, index=False)
            session.read.parquet(path).createOrReplaceTempView("raw")
            return Engine("spark", connection, connection.table("raw"))

        yield load
        session.stop()


_DESK_POLICY = """
[table]
source = "people.csv"
public_size = 400
[budget]
epsilon = 8.0
delta = 1e-6
{more}
[columns.age]
type = "integer"
lower = 0
upper = 120
[columns.ill]
type = "integer"
lower = 0
upper = 1
[columns.city]
type = "text"
categories = ["Delft", "Utrecht"]
"""


@pytest.fixture(scope="session")
def desk_files():
    """Write the files of a desk with 400 people into a folder; the place of its settings."""
    return _make_desk_files


def _make_desk_files(
    folder: Path, *, more: str = "", tick: float = 0.05, settings: str = "", database: str = "desk.db"
) -> Path:
    draw = public_generator(0)
    pd.DataFrame(
        {
            "age": draw.integers(18, 90, 400),
            "ill": draw.integers(0, 2, 400),
            "city": np.array(["Delft", "Utrecht"])[draw.integers(0, 2, 400)],
            "secret_number": draw.integers(0, 10**9, 400),
        }
    ).to_csv(folder / "people.csv", index=False)
    (folder / "people.toml").write_text(_DESK_POLICY.format(more=more))
    place = folder / "desk.toml"
    place.write_text(f'policies = ["people.toml"]\ndatabase = "{database}"\ntick = {tick}\n{settings}')
    return place
