"""Checkpoints: one safetensors file, tensors and JSON, whole or not there; loading one runs no code.

A release is the content of a durable checkpoint. A file is written under a name of its own, then the ledger is
told its digest, and only then does it get the checkpoint's name. Until the ledger has been told, figures and
weights of the steps since the last checkpoint are *not yet released*: do not pass them on. Steps that a crash
took away before that left no output; they are taken again with fresh samples and fresh noise, and cost nothing
more.

The first checkpoint, of step 0, is written inside the transaction that reserves the plan, and before a row is
touched (`keep_from_start`): whenever the process dies, the same command goes on under the same reservation, or
there is none. The ledger is not told of it: it holds nothing that was learned from rows.

`resume` takes the run's reservation up, and with it the right to go on: a process that had it before can
neither save nor finish. It goes on from the file whose digest the ledger has, and from no other: an older copy,
whose later steps were released already, is refused. A file that was written when the process died is adopted if
the ledger knows it, and deleted if not.

A process may die after it has settled its reservation and before the release is written. If the checkpoint is
the one that the ledger was told of last, and holds exactly the steps that were settled, `resume` takes it up as
a finished run: its content can be released, as it was paid for, and no step can be taken any more.

*Past noise.* A run with correlated noise needs the noise of its past steps to go on. A reader of it can take
the noise off the release, so it lies beside the checkpoint, readable by its owner alone, under a random name
that the checkpoint records. (A digest in the checkpoint would confirm a guess of the data.) It is overwritten
and removed as soon as a newer one is durable, and when the run ends. The journal of a file system, snapshots,
the spare blocks of a solid-state disk and backups may keep an older copy: where that matters, use an encrypted
disk and destroy its key.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sfumato.caveats import Caveat, as_caveats
from sfumato.errors import DataCorrupted, LedgerError, Refused, SettingsChanged
from sfumato.ledger import Charge, Head, Lease, Ledger, Reservation
from sfumato.ledger.rule import same_releases
from sfumato.mechanisms.correlated import Past
from sfumato.storage import destroy, rename, write_whole
from sfumato.training.plan import TrainingPlan
from sfumato.training.state import Setup, TrainerState, plain, setup_of
from sfumato.training.trainer import PrivateTrainer

Scheduler = torch.optim.lr_scheduler.LRScheduler

FORMAT = 2
_STAGED, _NOISE = ".staged", ".noise"
_NAME_OF_NOISE = re.compile("[0-9a-f]{32}")


def save_checkpoint(
    trainer: PrivateTrainer, path: str | os.PathLike[str], *, scheduler: Scheduler | None = None
) -> None:
    """Make the steps so far durable, and tell the ledger. Of several ranks the leading one does.

    The file holds weights, averages, the optimizer with its learning rates, and the `scheduler` if given.

    Args:
        trainer: The trainer.
        path: The file to write.
        scheduler: A learning-rate scheduler to save as well.

    Raises:
        Refused: If model, loss and views have another graph than that of the steps so far, as where an inner
            function reads a global name that has changed. Nothing is written, and the ledger is told nothing.

    ```python
    for batch in trainer.batches(data):
        trainer.step(batch, loss_fn)
        if trainer.steps_done % 100 == 0:
            save_checkpoint(trainer, "private/checkpoint.safetensors")
    ```
    """
    if not trainer.peers.leads:
        return
    trainer.check_graph()
    target, state = Path(path), trainer.state
    trainer.at_the_end[target] = partial(destroy_past_noise, target)
    past_noise = _keep_past_noise(target, state.past_noise)
    content = _content(trainer, state, past_noise, scheduler)
    digest = hashlib.sha256(content).hexdigest()
    # Named after its content, so that no process can put its own in the place of another's.
    staged = target.with_name(f".{target.name}.{digest}{_STAGED}")
    write_whole(staged, content)
    done = trainer.steps_done
    if trainer.reservation is not None and done:
        trainer.reservation.mark(trainer.plan.event(done), steps=done, digest=digest)
    _rename_durably(staged, target)
    destroy_past_noise(target, but=past_noise)
    trainer.tell_callbacks()


def keep_from_start(trainer: PrivateTrainer, path: str | os.PathLike[str]) -> None:
    """Let the trainer write a checkpoint of step 0 together with the reservation of its plan."""
    trainer.on_reserved = lambda reserved: save_checkpoint(reserved, path)
    trainer.keeps_checkpoints = True


def resume(
    trainer: PrivateTrainer,
    path: str | os.PathLike[str],
    *,
    scheduler: Scheduler | None = None,
    accept_new_graph: bool = False,
) -> None:
    """Put a fresh trainer of the same plan where the checkpoint was; its noise will be new.

    Of several ranks every one must call this. Rank 0 alone settles which file it is, and reads it; the others
    get its bytes. Learning rate, momentum and the like are those of the checkpoint; a warning says so where the
    optimizer was made with others.

    Args:
        trainer: A trainer of the same plan, model and ledger that has taken no step.
        path: The file that `save_checkpoint` wrote.
        scheduler: The scheduler whose state was saved.
        accept_new_graph: Go on although model, loss and views have another graph than before, or torch another
            version; without it the next step is refused.

    Raises:
        Refused: If the checkpoint is not the newest that the ledger knows, or of another plan or optimizer.
        DataCorrupted: If the file is damaged.

    ```python
    trainer = PrivateTrainer(model, optimizer, plan, ledger=ledger)
    resume(trainer, "private/checkpoint.safetensors")
    ```
    """
    given = trainer.setup
    go_on(trainer, path, scheduler=scheduler, accept_new_graph=accept_new_graph)
    if trainer.peers.leads:
        unlike = {name: new for name, _, new in _changed(trainer.setup, given)}
        if changed := _changed(setup_of(trainer.optimizer), unlike):
            old, new = _said(changed)
            message = (
                f"this run goes on with {old} of its checkpoint, not with {new}; set another after resume()"
            )
            warnings.warn(message, SettingsChanged, stacklevel=2)


def go_on(
    trainer: PrivateTrainer,
    path: str | os.PathLike[str],
    *,
    scheduler: Scheduler | None = None,
    accept_new_graph: bool = False,
) -> None:
    """Do as `resume`, without a warning; the settings of the optimizer are then those of the checkpoint."""
    target, reservation, charge, content = Path(path), None, None, b""
    with trainer.peers.together("to take the run up", resumes=True):
        if not trainer.is_fresh:
            raise Refused("expected a fresh trainer; this one has drawn batches or taken steps of its own")
        if trainer.peers.leads:
            if trainer.ledger is not None:
                charge = _settled(trainer, trainer.ledger, target)
                if charge is None:
                    reservation = _take_up_reservation(trainer, trainer.ledger, target)
            content = _bytes(target)
    content = trainer.peers.share_bytes(content)
    with trainer.peers.together("to read its checkpoint", resumes=True):
        state = _load(trainer, content, target, reservation or charge, scheduler)
        trainer.take_up(state, accept_new_graph=accept_new_graph)
    if trainer.peers.leads:
        trainer.at_the_end[target] = partial(destroy_past_noise, target)
    trainer.keeps_checkpoints = True


def can_resume(path: str | os.PathLike[str], ledger: Ledger | None) -> bool:
    """Whether there is a checkpoint: by its name, or one that the ledger was told of before it got the name.

    One of step 0, whose reservation was given back or is another ledger's, is none: nothing was learned.
    """
    target = Path(path)
    if ledger is None:
        return target.exists()
    if target.exists():
        record = _read_record(target)
        return record is None or record["step"] > 0 or _is_known(target, ledger)
    return any(_is_known(staged, ledger) for staged in _all_staged(target))


def remove_checkpoint(path: str | os.PathLike[str]) -> None:
    """Remove the checkpoint of a run that has ended, and files that a dead process left beside it."""
    target = Path(path)
    parts = target.parent.glob(f"..{target.name}.*.part")
    for file in (target, *_all_staged(target), *parts):
        file.unlink(missing_ok=True)
    destroy_past_noise(target)


# Settings beside the plan: none of them touches privacy


def check_setup(before: Setup, now: Setup, target: Path) -> None:
    """Refuse to go on with settings that a run cannot change."""
    fixed = {
        "optimizer": "its state fits no other: give the same one, or begin anew in another folder",
        "first_weights": "the run has others by now: give the same seed, or begin anew in another folder",
    }
    for name, old, new in _changed(before, now):
        if name in fixed:
            raise Refused(f"expected {name}={old!r}, with which {target} began, got {new!r}; {fixed[name]}")


def warn_that_given_go_on(began: Setup, given: Setup) -> None:
    """Warn of a run that goes on with other settings than it began with."""
    if changed := _changed(began, given):
        old, new = _said(changed)
        warnings.warn(f"this run goes on with {new}; it began with {old}", SettingsChanged, stacklevel=4)


def in_words(before: Setup, now: Setup) -> tuple[str, str]:
    """Return the settings that differ, as each side has them; a name that only one has is None in the other.

    >>> in_words({"steps": 8, "clip_norm": 1.0}, {"steps": 16, "clip_norm": 1.0})
    ('steps=8', 'steps=16')
    """
    names = dict.fromkeys((*before, *now))
    return _said(_changed({name: before.get(name) for name in names}, {name: now.get(name) for name in names}))


def _said(changed: list[tuple[str, Any, Any]]) -> tuple[str, str]:
    return (
        ", ".join(f"{name}={old}" for name, old, _ in changed),
        ", ".join(f"{name}={new}" for name, _, new in changed),
    )


def _changed(before: Setup, now: Setup) -> list[tuple[str, Any, Any]]:
    """Return names that both have, with other values; JSON makes a list of a tuple."""
    pairs = [(name, _listed(before[name]), _listed(now[name])) for name in before if name in now]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _listed(value: Any) -> Any:
    return list(map(_listed, value)) if isinstance(value, list | tuple) else value


# Writing


def _content(
    trainer: PrivateTrainer, state: TrainerState, past_noise: str | None, scheduler: Scheduler | None
) -> bytes:
    optimizer = trainer.optimizer.state_dict()
    tensors = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in state.average.items()}
    scalars: dict[str, Any] = {}
    for index, values in optimizer["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                scalars[f"{index}.{key}"] = value
    record = {
        "format": FORMAT,
        "step": state.step,
        "clip_norm": state.clip_norm,
        "averaged": state.averaged,
        "plan": trainer.plan.to_json(),
        "optimizer": scalars,
        "groups": [plain(group) for group in optimizer["param_groups"]],
        "scheduler": None if scheduler is None else plain(scheduler.state_dict()),
        "reservation": None if state.reservation is None else state.reservation.head.to_json(),
        "private": state.private,
        "past_noise": past_noise,  # its name; the noise itself is secret, and the checkpoint is not
        "caveats": [caveat.to_json() for caveat in as_caveats(sorted(state.caveats))],
        "eta": state.eta,
        "setup": dict(state.setup),
        "graph": dict(state.graph),
    }
    whole = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    return save(whole, metadata={"sfumato": json.dumps(record)})


def _all_staged(target: Path) -> list[Path]:
    start = f".{target.name}."
    found = target.parent.iterdir() if target.parent.is_dir() else iter(())
    return sorted(path for path in found if path.name.startswith(start) and path.suffix == _STAGED)


def _rename_durably(staged: Path, target: Path) -> None:
    try:
        rename(staged, target)
    except FileNotFoundError as error:
        raise Refused(
            f"expected to give the checkpoint its name {target}, got none to name; another process has taken "
            "the run up: let that one finish"
        ) from error


# Which file it is


def _take_up_reservation(trainer: PrivateTrainer, ledger: Ledger, target: Path) -> Reservation:
    """Find the file that the ledger knows, and only then take the run from the process that had it."""
    record = _newest_record(target, ledger)
    _check_plan(trainer, record, target)
    if record["reservation"] is None:
        raise Refused(f"expected {target} to name a reservation of this ledger; it was trained without one")
    head = Head.from_json(record["reservation"])
    lease = ledger.lease(head)
    chosen = _known_file(target, lease)
    reservation = ledger.reservation(head, seen=lease, private=trainer.private)
    if chosen != target:
        _rename_durably(chosen, target)
    for path in _all_staged(target):
        path.unlink(missing_ok=True)
    return reservation


def _settled(trainer: PrivateTrainer, ledger: Ledger, target: Path) -> Charge | None:
    """Return the charge of a run that lacks only its release: the checkpoint holds exactly the settled steps.

    Several ranks are not told that no step is left, so that theirs is refused as any settled run.
    """
    record = _read_record(target) if target.exists() and not trainer.peers.several else None
    if record is None or record["reservation"] is None:
        return None
    found = ledger.settled(Head.from_json(record["reservation"]))
    if found is None:
        return None
    lease, charge = found
    _check_plan(trainer, record, target)
    steps = record["step"]
    whole = 0 < steps == lease.steps and same_releases(charge.event, trainer.plan.event(steps))
    return charge if whole and lease.digest is not None and _agrees(target, lease) else None


def _newest_record(target: Path, ledger: Ledger) -> dict[str, Any]:
    """Read the checkpoint; one without its name, if the process died before its first got it."""
    if target.exists():
        return _parsed(_bytes(target), target)[1]
    records = (_read_record(path) for path in _all_staged(target) if _is_known(path, ledger))
    for record in records:
        if record is not None:
            return record
    raise DataCorrupted(f"expected a checkpoint at {target}, got none")


def _is_known(path: Path, ledger: Ledger) -> bool:
    record = _read_record(path)
    if record is None or record["reservation"] is None:
        return False
    try:
        lease = ledger.lease(Head.from_json(record["reservation"]))
    except LedgerError:  # settled, or of another ledger
        return False
    return _agrees(path, lease)


def _known_file(target: Path, lease: Lease) -> Path:
    """Return the file whose digest the ledger has."""
    for path in (target, *_all_staged(target)):
        if path.exists() and _agrees(path, lease):
            return path
    if lease.digest is None:
        raise Refused(
            f"expected a checkpoint that the ledger was told of, got {target}, which it was not; start anew"
        )
    raise Refused(
        f"expected the newest checkpoint, of step {lease.steps}, got {target}, which is another; the steps up "
        "to there were released already, and taking them again would release them twice"
    )


def _agrees(path: Path, lease: Lease) -> bool:
    """Whether a file is the one that the ledger was told of; before it was told of any, one of step 0."""
    if lease.digest is not None:
        return hashlib.sha256(path.read_bytes()).hexdigest() == lease.digest
    record = _read_record(path)
    return record is not None and record["step"] == lease.steps == 0


def _check_plan(trainer: PrivateTrainer, record: Mapping[str, Any], target: Path) -> None:
    kept = TrainingPlan.from_json(record["plan"])
    if kept != trainer.plan:
        before, now = in_words(kept.to_json(), trainer.plan.to_json())
        raise Refused(
            f"expected the plan that {target} was priced with, of {before}, got one of {now}; give the same ε, "
            "epochs and batch as before, or begin anew in another folder, which is charged anew"
        )
    check_setup(record["setup"], trainer.setup, target)


# Reading


def _read_record(path: Path) -> dict[str, Any] | None:
    """Read the record of a file that may have been cut off; None if it was."""
    try:
        return _parsed(_bytes(path), path)[1]
    except DataCorrupted:
        return None


def _bytes(path: Path) -> bytes:
    """Read the file, opened once: the bytes that are checked are used, though it may get another name."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataCorrupted(
            f"expected a checkpoint at {path}, got one that cannot be read: {error.strerror}"
        ) from error


def _parsed(content: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        record = json.loads(header.get("__metadata__", {}).get("sfumato", "null"))
    except (SafetensorError, ValueError) as error:
        raise DataCorrupted(f"expected a checkpoint at {path}, got one that cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise DataCorrupted(
            f"expected a checkpoint of format {FORMAT} at {path}; it was written by another version"
        )
    return tensors, record


def _load(
    trainer: PrivateTrainer,
    content: bytes,
    target: Path,
    paid: Reservation | Charge | None,
    scheduler: Scheduler | None,
) -> TrainerState:
    tensors, record = _parsed(content, target)
    _check_plan(trainer, record, target)
    if record["reservation"] is not None and trainer.ledger is None and trainer.peers.leads:
        raise Refused(
            f"expected the ledger that paid for {target}, got none; name it: --ledger in a command, ledger= in "
            "Python"
        )
    try:
        trainer.model.load_state_dict(_under("model", tensors))
    except RuntimeError as error:
        raise Refused(
            f"expected the model of the run that {target} was kept of, got another; give the same options, or "
            "begin anew in another folder"
        ) from error
    _load_optimizer(trainer.optimizer, _under("optimizer", tensors), record)
    if scheduler is not None:
        if record["scheduler"] is None:
            raise Refused(f"expected {target} to hold a scheduler; save_checkpoint(…, scheduler=) keeps one")
        scheduler.load_state_dict(record["scheduler"])
    kept = record["past_noise"] if trainer.peers.leads and not isinstance(paid, Charge) else None
    return TrainerState(
        step=record["step"],
        clip_norm=record["clip_norm"],
        average=_under("average", tensors),
        averaged=record["averaged"],
        private=record["private"] and (paid is None or paid.private),
        reservation=paid if isinstance(paid, Reservation) else None,
        charge=paid if isinstance(paid, Charge) else None,
        past_noise=read_past_noise(target, kept),
        caveats=frozenset(map(Caveat.from_json, record["caveats"])),
        eta=record["eta"],
        setup=record["setup"],
        graph=record["graph"],
    )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], record: Mapping[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **record["optimizer"]}.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    for group, kept in zip(groups, record["groups"], strict=False):
        group.update(kept | {"params": group["params"]})
    in_order = dict(sorted(state.items()))  # a file gives its tensors in any order
    optimizer.load_state_dict({"state": in_order, "param_groups": groups})


# Past noise: secret, beside the checkpoint


def _keep_past_noise(checkpoint: Path, past: Past | None) -> str | None:
    """Write it beside `checkpoint`, for its owner alone; return its name, for the checkpoint's record."""
    if past is None:
        return None
    name = secrets.token_hex(16)
    content = safetensors.numpy.save({key: np.ascontiguousarray(value) for key, value in past.items()})
    write_whole(_noise_file(checkpoint, name), content)
    return name


def read_past_noise(checkpoint: Path, name: object) -> Past | None:
    """Return the past noise of that name; Refused if it is gone."""
    if name is None:
        return None
    if not isinstance(name, str) or not _NAME_OF_NOISE.fullmatch(name):
        raise DataCorrupted(f"expected {checkpoint} to name its past noise, got something else")
    path = _noise_file(checkpoint, name)
    try:
        return safetensors.numpy.load(path.read_bytes())
    except FileNotFoundError as error:
        raise Refused(
            f"expected the past noise of this checkpoint at {path}, got none; steps to come need it, as their "
            "noise is correlated with it: put the file back, or start anew"
        ) from error
    except (SafetensorError, OSError) as error:
        raise DataCorrupted(f"expected past noise at {path}, got a file that cannot be read") from error


def destroy_past_noise(checkpoint: Path, *, but: str | None = None) -> None:
    """Overwrite and remove all past noise beside `checkpoint`, but that of the name `but`."""
    for path in _all_noise(checkpoint):
        if but is None or path != _noise_file(checkpoint, but):
            destroy(path)


def _noise_file(checkpoint: Path, name: str) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.{name}{_NOISE}")


def _all_noise(checkpoint: Path) -> Iterator[Path]:
    """Yield also the files that a process was writing when it died."""
    for path in sorted(checkpoint.parent.iterdir()) if checkpoint.parent.is_dir() else ():
        whole = path.name.startswith(f"{checkpoint.name}.") and path.suffix == _NOISE
        part = path.name.startswith(f".{checkpoint.name}.") and path.suffix == ".part" and _NOISE in path.name
        if whole or part:
            yield path
