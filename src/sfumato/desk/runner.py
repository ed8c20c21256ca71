"""The processes beside the server: a keeper, which takes jobs, and a runner for each of them.

`python -m sfumato.desk.runner DESK.toml` keeps, and with the numbers of a job and its try it runs that. Each
ends when its standard input does, which is when the process that started it has ended, in any way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from sfumato.desk import database as db
from sfumato.desk import jobs
from sfumato.desk.config import Settings, load_settings
from sfumato.desk.database import Database
from sfumato.errors import BudgetExceeded, SfumatoError
from sfumato.ledger import Charge, ChargeRequest, Head, Ledger, Reservation
from sfumato.ledger.rule import same_releases
from sfumato.policy import Policy
from sfumato.query.answer import ledger_place
from sfumato.storage import RunFolder, make_folder

PAUSE = 0.5  # seconds between looks at the queue
_EVERY = 1.0  # seconds between writes of the progress


# The keeper


def keep(place: Path) -> None:
    """Run jobs one after another, for ever."""
    database = Database(load_settings(place).database)
    jobs.put_back(database)
    while True:
        job = jobs.take(database)
        if job is None:
            time.sleep(PAUSE)
            continue
        words = [sys.executable, "-m", "sfumato.desk.runner", str(place), str(job.id), str(job.tries)]
        quiet = subprocess.DEVNULL  # a library may print rows
        runner = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        while runner.poll() is None:
            if jobs.state_of(database, job.id) == jobs.CANCELLING:
                runner.kill()
                runner.wait()
            time.sleep(PAUSE)
        if runner.stdin is not None:
            runner.stdin.close()
        jobs.put_back_one(database, job.id, job.tries)


# One job


class PaidOnce(Ledger):
    """A ledger that one job charges once: the reservation of an earlier try of the job is this try's.

    *Why that is sound*: a try's reservation is settled before the end of the try is told, so one that is open
    is of a try that was interrupted and showed nothing. The job has one release, that of the one try that ends,
    and the others are as if they had not been (the times at which they ended aside). The ledger alone decides
    that: a desk whose database was lost, or is an older copy, counts its jobs anew and pays for each again.
    """

    job = ""
    payable: Callable[[], None] = staticmethod(lambda: None)
    """Raises where the job may not be charged now; reservations of an earlier try were checked then."""
    _taken: frozenset[Head] = frozenset()  # by this try

    def of_job(self, number: int, share: str | None, *, origin: str = "") -> PaidOnce:
        self.job = f"desk job {number} ({origin})"
        self.spend_under(share, purpose=self.job)
        return self

    def __enter__(self) -> PaidOnce:
        return self

    def pay(self, request: ChargeRequest) -> Charge:
        return self.hold(request).charge

    def hold(
        self,
        request: ChargeRequest,
        *,
        begun: bool = True,
        noted: Callable[[Reservation], None] | None = None,
    ) -> Reservation:
        (allocation,) = request.allocations
        terms = (f"{self.job}: {request.purpose}", self._share(allocation), request.relation, request.private)
        for known in self.open_reservations():
            said = (known.purpose, known.allocation, known.relation, known.private)
            if said == terms and known.head not in self._taken and same_releases(known.event, request.event):
                found = self.reservation(known.head)
                if noted is not None:
                    noted(found)
                if begun:
                    found.begin()
                break
        else:
            self.payable()
            found = super().hold(request, begun=begun, noted=noted)
        self._taken |= {found.head}
        return found

    def settle(self) -> None:
        """Close the reservations of the job, and of no other job of this desk or another.

        All of it is spent, unless no try had begun with it when the job ended.
        """
        for known in self.open_reservations():
            if not known.purpose.startswith(f"{self.job}: "):
                continue
            if self.lease(known.head).begun:
                self.reservation(known.head).settle()
            else:
                self.give_back(known.head.sequence)


def run(home: Path, number: int, tries: int) -> None:
    """Do a job's try; every way in which it can end is written into the database."""
    settings = load_settings(home)
    database = Database(settings.database)
    with database.read() as connection:
        job = connection.execute(select(db.jobs).where(db.jobs.c.id == number)).one()
    folder = settings.runs / job.folder
    make_folder(folder)
    os.chdir(folder)  # files are written by names that tell no place outside
    state, sentence, result = jobs.DONE, None, None
    try:
        result = _WORK[job.kind](settings, database, job)
    except BudgetExceeded as error:
        state, sentence = jobs.REFUSED, str(error)
    except SfumatoError as error:
        state, sentence = jobs.FAILED, str(error)
    except Exception as error:
        state, sentence = jobs.FAILED, f"an unexpected {type(error).__name__}"
    with _opened(settings, database, job)[1] as ledger:
        ledger.settle()
    jobs.end(database, number, tries, state, result=result, sentence=sentence)


def _opened(settings: Settings, database: Database, job: Any) -> tuple[Policy, PaidOnce]:
    """Return a job's policy, and its ledger, which charges the job's share."""
    found = settings.policies.items()
    place, policy = next((place, one) for place, one in found if one.private_names[0] == job.dataset)
    ledger = PaidOnce.open(ledger_place(policy, place), dataset=policy.dataset)
    assert isinstance(ledger, PaidOnce)
    ledger.of_job(job.id, job.share, origin=job.origin)
    ledger.payable = lambda: jobs.check_payable(database, ledger.state, job)
    return policy, ledger


def _watch(database: Database, job: Any, total: float) -> Callable[[float], None]:
    said = time.monotonic()

    def watch(done: float) -> None:
        nonlocal said
        if time.monotonic() > said + _EVERY:
            said = time.monotonic()
            jobs.progress(database, job.id, job.tries, min(1.0, done / max(total, 1)))

    return watch


def _train(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    from sfumato.learn.table import TableTraining

    policy, ledger = _opened(settings, database, job)
    chosen = {name: job.words[name] for name in ("target", "model", "leave_out")}
    ready = TableTraining.prepare(policy, epsilon=job.epsilon, **chosen)
    with ledger:
        run = ready.train(ledger=ledger, out="model", watch=_watch(database, job, ready.releases))
    facts = {"epsilon": run.epsilon, "delta": run.delta, "left_out": list(run.left_out)}
    return {"facts": facts, "files": _files(RunFolder(Path("model")).release), "run": "model"}


def _synthesize(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    from sfumato.marginals import engine_marginals
    from sfumato.randomness import SecretStream
    from sfumato.synthesis import Request, release

    policy, ledger = _opened(settings, database, job)
    chosen = {name: job.words[name] for name in ("target", "rows", "leave_out")}
    request = Request.of(policy, epsilon=job.epsilon, **chosen)
    marginals, place = engine_marginals(request, policy), Path("table/synthetic.csv")
    make_folder(place.parent)
    with ledger:
        found = release(request, marginals, ledger=ledger, out=place, sampler=SecretStream())
    facts = {
        "epsilon": found.epsilon,
        "delta": request.delta,
        "rows": request.rows,
        "left_out": list(request.left_out),
        "not_measured": [", ".join(clique) for clique in found.report["not_measured"]],
        "notes": list(found.notes),
    }
    return {"facts": facts, "files": _files(place.parent)}


def _pate(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    """Let teachers label the public images, and train a student on the labels."""
    from sfumato import pate

    policy, ledger = _opened(settings, database, job)
    chosen = jobs.pate_settings(policy, teachers=job.words["teachers"], epsilon=job.epsilon)
    watch, delta = _watch(database, job, 1.0), policy.budget.delta
    with ledger:
        found = pate.run(
            *_images_of(policy),
            chosen,
            delta=delta,
            ledger=ledger,
            out=Path("labels"),
            progress=lambda _, share: watch(share),
        )
    labels = {"labels": chosen.plan.queries, "student_accuracy": found.student_accuracy}
    facts = {"epsilon": found.epsilon, "delta": delta, **labels}
    return {"facts": facts, "files": _files(RunFolder(Path("labels")).release), "run": "labels"}


def _images(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    """Draw images, and measure them against the public ones."""
    from sfumato.plugins import part
    from sfumato.randomness import SecretStream

    policy, ledger = _opened(settings, database, job)
    request = jobs.image_request(policy, images=job.words["rows"], epsilon=job.epsilon)
    (rows, test), place = _images_of(policy), Path("images/drawn.npz")
    make_folder(place.parent)
    with ledger:
        made = part("images").release_images(
            request, rows, ledger=ledger, out=place, sampler=SecretStream(), test=test
        )
    facts = {"epsilon": made.epsilon, "delta": request.delta, "images": request.images}
    return {"facts": facts, "files": _files(place.parent)}


def _images_of(policy: Policy) -> tuple[Any, Any]:
    """Return the private images, and the public ones."""
    private = replace(jobs._loaded(policy.source, "train"), public_size=policy.public_size)
    return private, replace(jobs._loaded(policy.source, "test"), visibility="public")


def _report(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    """Write one page about the models that the team has trained."""
    from sfumato.report import write_report

    mine = (db.jobs.c.team == job.team) & (db.jobs.c.dataset == job.dataset)
    with database.read() as connection:
        rows = connection.execute(select(db.jobs).where(mine, db.jobs.c.state == jobs.DONE)).all()
    os.chdir(settings.runs)
    runs = [Path(row.folder) / row.result["run"] for row in rows if "run" in row.result]
    page = write_report(runs, Path(job.folder) / "report.html")
    return {"facts": {"runs": len(runs), "sections": list(page.sections)}, "files": ["report.html"]}


_WORK: dict[str, Callable[[Settings, Database, Any], dict[str, Any]]] = {
    "train": _train,
    "synthesize": _synthesize,
    "pate": _pate,
    "images": _images,
    "report": _report,
}


def _files(folder: Path) -> list[str]:
    """Return the released files by their place in the folder of the try; no private one is among them."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if "private" not in path.parts)


def _end_with_input() -> None:
    """End this process as soon as its standard input does."""

    def watch() -> None:
        while os.read(0, 4096):  # not through sys.stdin, whose lock would be held while Python shuts down
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _end_with_input()
    if len(sys.argv) == 2:
        keep(Path(sys.argv[1]))
    else:
        run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
