"""One job in a process of its own: charge once, work, and say what came of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import select

from sfumato.desk import database as db
from sfumato.desk import image_jobs, jobs
from sfumato.desk.config import Settings, load_settings
from sfumato.desk.database import Database
from sfumato.desk.keeper import end_with_input
from sfumato.errors import BudgetExceeded, SfumatoError
from sfumato.ledger import Charge, ChargeRequest, Head, Ledger, Reservation
from sfumato.ledger.rule import same_releases
from sfumato.policy import Policy
from sfumato.query.answer import ledger_place
from sfumato.storage import RunFolder, make_folder

Watch = Callable[[float], None]
_EVERY = 1.0  # seconds between writes of the progress


class PaidOnce(Ledger):
    """A ledger that one job charges once: what an earlier try of the same job reserved is this try's.

    *Why that is sound*: a try's reservation is settled before anybody is told how it ended, so one that is open
    is of a try that was interrupted and showed nothing. The job has one release, that of the one try that ends,
    and the others are as if they had not been (the times at which they ended aside). The ledger alone decides
    that: a desk whose database was lost, or is an older copy, counts its jobs anew and pays for each again.
    """

    job = ""
    payable: Callable[[], None] = staticmethod(lambda: None)
    """Raises where the job may not be charged now; what an earlier try reserved was checked then."""
    _taken: frozenset[Head] = frozenset()  # by this try

    def of_job(self, number: int, share: str | None, *, origin: str | None = None) -> PaidOnce:
        self.job = f"desk job {number}" + (f" ({origin})" if origin else "")
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
        """Close what the job has reserved, and nothing of another job, of this desk or another.

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
    """Do a job's try; every way in which it can end is in the database."""
    settings = load_settings(home)
    database = Database(settings.database)
    with database.read() as connection:
        job = connection.execute(select(db.jobs).where(db.jobs.c.id == number)).one()
    folder = settings.runs / jobs.folder_of(job)
    make_folder(folder)
    os.chdir(folder)  # what is written names no place outside
    state, sentence, result = jobs.DONE, None, None
    try:
        result = _WORK[job.kind](settings, database, job)
    except BudgetExceeded as error:
        state, sentence = jobs.REFUSED, str(error)
    except SfumatoError as error:
        state, sentence = jobs.FAILED, str(error)
    except Exception as error:
        state, sentence = jobs.FAILED, f"an unexpected {type(error).__name__}"
    place, policy = _policy(settings, job.dataset)
    with _ledger(place, policy) as ledger:
        ledger.of_job(number, None, origin=job.origin).settle()
    jobs.end(database, number, tries, state, result=result, sentence=sentence)


def _policy(settings: Settings, name: str) -> tuple[Path, Policy]:
    return next(
        (place, policy) for place, policy in settings.policies.items() if policy.private_names[0] == name
    )


def _opened(settings: Settings, database: Database, job: Any) -> tuple[Policy, PaidOnce]:
    place, policy = _policy(settings, job.dataset)
    ledger = _ledger(place, policy).of_job(job.id, job.share, origin=job.origin)
    ledger.payable = lambda: jobs.check_payable(database, ledger.state, job)
    return policy, ledger


def _ledger(place: Path, policy: Policy) -> PaidOnce:
    ledger = PaidOnce.open(ledger_place(policy, place), dataset=policy.dataset)
    assert isinstance(ledger, PaidOnce)
    return ledger


def _watch(database: Database, job: Any, total: float) -> Watch:
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
    words = job.words
    chosen = {"target": words["target"], "epsilon": job.epsilon, "leave_out": words.get("leave_out", ())}
    ready = TableTraining.prepare(policy, model=words["model"], **chosen)
    with ledger:
        run = ready.train(ledger=ledger, out="model", watch=_watch(database, job, ready.releases))
    facts = {"epsilon": run.epsilon, "delta": run.delta, "left_out": list(run.left_out)}
    return {"facts": facts, "files": _files(RunFolder(Path("model")).release), "run": "model"}


def _synthesize(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    from sfumato.learn.marginals import engine_marginals
    from sfumato.randomness import SecretStream
    from sfumato.synthesis import Request, release

    policy, ledger = _opened(settings, database, job)
    words = job.words
    chosen = {"target": words["target"], "epsilon": job.epsilon, "leave_out": words.get("leave_out", ())}
    request = Request.of(policy, rows=words["rows"], **chosen)
    make_folder(Path("table"))
    with ledger:
        found = release(
            request,
            engine_marginals(request, policy),
            ledger=ledger,
            out=Path("table/synthetic.csv"),
            sampler=SecretStream(),
        )
    facts = {
        "epsilon": found.epsilon,
        "delta": request.delta,
        "rows": request.rows,
        "left_out": list(request.left_out),
        "not_measured": [", ".join(clique) for clique in found.report["not_measured"]],
        "notes": list(found.notes),
    }
    return {"facts": facts, "files": _files(Path("table"))}


def _pate(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    policy, ledger = _opened(settings, database, job)
    chosen = image_jobs.pate_settings(policy, teachers=job.words["teachers"], epsilon=job.epsilon)
    watch = _watch(database, job, 1.0)
    with ledger:
        facts = image_jobs.run_pate(policy, ledger, chosen, out=Path("labels"), progress=watch)
    return {"facts": facts, "files": _files(RunFolder(Path("labels")).release), "run": "labels"}


def _images(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    policy, ledger = _opened(settings, database, job)
    request = image_jobs.image_request(policy, images=job.words["rows"], epsilon=job.epsilon)
    make_folder(Path("images"))
    with ledger:
        facts = image_jobs.run_images(policy, ledger, request, out=Path("images/drawn.npz"))
    return {"facts": facts, "files": _files(Path("images"))}


def _report(settings: Settings, database: Database, job: Any) -> dict[str, Any]:
    """One page of the models that the team has trained."""
    from sfumato.report import write_report

    with database.read() as connection:
        rows = connection.execute(
            select(db.jobs).where(
                db.jobs.c.team == job.team, db.jobs.c.dataset == job.dataset, db.jobs.c.state == jobs.DONE
            )
        ).all()
    os.chdir(settings.runs)
    runs = [jobs.folder_of(row) / row.result["run"] for row in rows if "run" in row.result]
    page = write_report(runs, jobs.folder_of(job) / "report.html")
    return {"facts": {"runs": len(runs), "sections": list(page.sections)}, "files": ["report.html"]}


_WORK: dict[str, Callable[[Settings, Database, Any], dict[str, Any]]] = {
    "train": _train,
    "synthesize": _synthesize,
    "pate": _pate,
    "images": _images,
    "report": _report,
}


def _files(folder: Path) -> list[str]:
    """What was released, by its place in the folder of the try; nothing private is among it."""
    private = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in private if "private" not in path.parts)


if __name__ == "__main__":
    end_with_input()
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
