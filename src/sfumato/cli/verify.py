"""`sfumato verify`: recompute the figures of a certificate, and compare its plan with its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.errors import InvalidInput, NotVerified, SfumatoError

if TYPE_CHECKING:
    from sfumato.accounting import DpEvent
    from sfumato.ledger import Certificate, Prices, PublicKey

Key = Annotated[
    Path | None, typer.Option(help="Public key of the holder. Fail unless the signature is by this key.")
]
Trust = Annotated[
    list[Path] | None,
    typer.Option(help="A rotation or revocation of that key. May be repeated."),
]
BOTH = ("ε, exact (PLD)", "ε, Rényi bound (RDP)")
OF_STOPPED = ("ε, whole plan (PLD)", "ε, steps that ran (filter)")
QUOTE = "the whole plan's ε, which was fixed before the run; the run was stopped early"
EVENTS_ALONE = "not needed: the events alone say what it costs"
PLACES = ("release/certificate.json", "certificate.json")
UNSIGNED = "nobody: whoever had the file could change it"
UNKNOWN = "{id}, which fits the text; --key shows whose it is"


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    certificate: Annotated[
        Path, typer.Argument(help="The certificate.json beside a release, or the run folder.")
    ],
    key: Key = None,
    trust: Trust = None,
    json: show.Json = False,
) -> None:
    """Recompute ε from a certificate's events, compare, and check the signature.

    Example: sfumato verify out/release/certificate.json --key holder.pub
    """
    stated, found, compared = _judged(_found_in(certificate), key, trust or [])
    warning = stated.warning
    if json:
        show.emit_json(
            {
                "valid": True,
                "pld": found.pld,
                "rdp": found.rdp,
                "delta": stated.delta,
                "stopped_early": stated.planned is not None,
                "warning": warning,
                "signer": stated.signer.id if stated.signer else None,
                "plan_compared": compared,
            }
        )
        return
    show.facts(_rows(stated, found, compared, known=key is not None), title=_title(warning))


def _found_in(place: Path) -> Path:
    """The certificate of a run folder; any other place is that of a certificate."""
    if not place.is_dir():
        return place
    for name in PLACES:
        if (place / name).is_file():
            return place / name
    raise NotVerified(
        f"expected a certificate, or a folder with {' or '.join(PLACES)} in it, got {place} without one; name "
        "the file"
    )


def _judged(path: Path, key: Path | None, trust: Sequence[Path]) -> tuple[Certificate, Prices, bool]:
    """Run all checks; a fault of the file is reported in one sentence, and the command fails."""
    from sfumato.ledger import Certificate
    from sfumato.storage import RunFolder

    interrupted = RunFolder(path.parent.parent).in_words_if_interrupted()
    if interrupted is not None and not path.exists():
        raise NotVerified(interrupted)
    try:
        stated = Certificate.read(path)
        check_signer(stated.signer, key, trust)
        return stated, stated.verify(), check_plan(stated)
    except InvalidInput as error:  # of the file's, not of the command's
        raise NotVerified(str(error)) from error
    except (SfumatoError, OSError):
        raise
    except Exception as error:
        raise NotVerified(
            f"expected a certificate that can be checked, got one that cannot ({type(error).__name__}); "
            "do not rely on it"
        ) from error


def check_signer(signer: PublicKey | None, key: Path | None, trust: Sequence[Path]) -> None:
    """Raise NotVerified unless the holder of `key`, or of a key that took its place, signed."""
    from sfumato.ledger import KeyStatement, PublicKey, trusted_keys

    if key is None:
        if trust:
            raise InvalidInput("expected --key with --trust, got none; statements are about a key")
        return
    accepted = trusted_keys(PublicKey.read(key), [KeyStatement.read(path) for path in trust])
    if signer is None:
        raise NotVerified(f"expected a signature by {key}, got none; ask the holder for a signed one")
    if signer.id not in accepted:
        raise NotVerified(
            f"expected a signature by {key} or a key that took its place, got one by the key {signer.id}, "
            "which is another or was revoked; do not rely on it"
        )


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _title(warning: str | None) -> str:
    if warning is None:
        return "The certificate states what its events cost."
    return f"The certificate states what its events cost, and it {warning}."


def _rows(stated: Certificate, found: Prices, compared: bool, *, known: bool) -> list[tuple[str, Any]]:
    signer = UNSIGNED if stated.signer is None else UNKNOWN.format(id=stated.signer.id)
    return [
        ("release", stated.purpose),
        ("protects", f"each {stated.unit}, neighbours by {stated.relation}"),
        *zip(
            BOTH if stated.planned is None else OF_STOPPED,
            (_figure(found.pld), _figure(found.rdp)),
            strict=True,
        ),
        ("at δ", f"{stated.delta:g}"),
        *([] if stated.planned is None else [("quote", QUOTE)]),
        ("plan", "agrees with the events" if compared else EVENTS_ALONE),
        ("signed by", f"{stated.signer.id}, as asked" if known and stated.signer else signer),
        *(("caveat", caveat) for caveat in stated.caveats),
    ]


_ROUNDING = 1e-3


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The full release of a plan, and its terms; None where it names none."""

    event: DpEvent | None = None
    whole: bool = False  # whether a part of them must say that it is one
    epsilon: float | None = None  # where the events were found by a search, and only their price is planned
    relation: str | None = None
    unit: str | None = None
    delta: float | None = None


def check_plan(certificate: Certificate) -> bool:
    """Whether there was a plan to compare; NotVerified if it contradicts the events or the terms.

    A run that was stopped has a part of its plan's events, and states the whole of them.
    """
    try:
        planned = _planned(certificate.plan)
    except (InvalidInput, TypeError, ValueError, ArithmeticError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise NotVerified(f"expected a plan that makes sense, got one that does not: {reason}") from error
    if planned is None:
        return False
    for name in ("relation", "unit", "delta"):
        said, stated = getattr(planned, name), getattr(certificate, name)
        if said is not None and said != stated:
            raise NotVerified(
                f"expected the plan to be for {name}={stated!s}, as the certificate states, got {name}={said!s}"
            )
    if not _made_by(planned, certificate):
        raise NotVerified(
            "expected events that the certificate's plan makes, got others; plan and ε are not of one run"
        )
    return True


def _made_by(planned: Planned, certificate: Certificate) -> bool:
    from sfumato.ledger.rule import part_of, same_releases

    if planned.event is not None:
        stated = certificate.planned or certificate.event
        complete = same_releases(stated, planned.event) or not planned.whole
        return complete and part_of(certificate.event, planned.event)
    price = certificate.prices.pld
    return planned.epsilon is not None and price is not None and price <= planned.epsilon * (1 + _ROUNDING)


def _planned(plan: Mapping[str, Any]) -> Planned | None:
    """By the fields that only one kind of plan has."""
    if "noise_multiplier" in plan or "sample_rate" in plan:
        return _training(plan)
    if "adapted" in plan:
        return _adapted(plan["adapted"])
    if "images" in plan:
        return _images(plan)
    if "single_sigma" in plan:
        return _table(plan)
    if "votes" in plan:
        return _votes(plan["votes"])
    if "trial" in plan:
        return _trials(plan)
    if "randomiser" in plan:
        return _reports(plan)
    return None


def _training(plan: Mapping[str, Any]) -> Planned:
    from sfumato.training import TrainingPlan

    trained = TrainingPlan.from_json(plan)
    return Planned(event=trained.event(), whole=True, relation=str(trained.relation), unit=trained.unit)


def _adapted(plan: Mapping[str, Any]) -> Planned:
    from sfumato.accounting import compose
    from sfumato.learn.statistic import StatisticPlan
    from sfumato.training import TrainingPlan

    first, head = StatisticPlan(**plan["statistic"]), TrainingPlan.from_json(plan["head"])
    event = compose(first.event(), head.event())
    return Planned(event=event, whole=True, relation=str(head.relation), unit=head.unit)


def _images(plan: Mapping[str, Any]) -> Planned:
    from sfumato.plugins import part

    own = part("images").ImagePlan.from_json(plan)
    unit = None if own.head is None else own.head.unit
    return Planned(event=own.event(), whole=True, relation="add-remove", unit=unit)


def _table(plan: Mapping[str, Any]) -> Planned:
    from sfumato.synthesis import SynthesisPlan

    return Planned(event=SynthesisPlan.from_json(plan).event(), whole=True, relation="add-remove")


def _votes(votes: Mapping[str, Any]) -> Planned:
    from sfumato.pate import VotePlan

    return Planned(event=VotePlan(**votes).event(), relation="add-remove")


def _trials(plan: Mapping[str, Any]) -> Planned:
    from sfumato.learn.tuning import selection_event
    from sfumato.training import TrainingPlan

    trial = TrainingPlan.from_json(plan["trial"])
    event = selection_event(trial, plan["tuning"]["mean_trials"])
    return Planned(event=event, relation=str(trial.relation), unit=trial.unit)


def _reports(plan: Mapping[str, Any]) -> Planned:
    from sfumato.local import ReportPlan

    own = ReportPlan.from_json({name: plan[name] for name in ReportPlan.__dataclass_fields__ if name in plan})
    return Planned(epsilon=own.epsilon, relation="replace-one", unit="person", delta=own.delta)
