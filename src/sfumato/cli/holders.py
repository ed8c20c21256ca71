"""`sfumato holders`: several holders, one model, and nobody shows anybody anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show

if TYPE_CHECKING:
    from sfumato.holders import Simulated, Study

app = typer.Typer(
    help="Train one model over the data of several holders, who show each other nothing.", no_args_is_help=True
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="holders")


@app.command()
def simulate(
    data: Annotated[
        str, typer.Option(help="mnist, fashion-mnist, digits or strokes; its test images are public.")
    ],
    epsilon: Annotated[float, typer.Option(help="ε against the best informed adversary.")],
    holders: Annotated[int, typer.Option(help="Number of holders among whom the rows are dealt out.")] = 10,
    colluding: Annotated[
        int, typer.Option(help="Number of holders that may collude with the coordinator.")
    ] = 0,
    dropped: Annotated[
        int, typer.Option(help="Number of holders that may be lost in a round; as many are, others each time.")
    ] = 0,
    delta: Annotated[
        float, typer.Option(help="The δ of the guarantee; choose it well below 1 / number of people.")
    ] = 1e-5,
    json: show.Json = False,
) -> None:
    """Rehearse a study in one process, with the masks and the noise of a real one.

    Example: sfumato holders simulate --holders 10 --data mnist --epsilon 1 --colluding 3 --dropped 2
    """
    from sfumato import datasets
    from sfumato.holders import Parties, simulate

    parties = Parties(holders=holders, colluding=colluding, dropped=dropped)
    rows, test = datasets.load(data, "train"), datasets.load(data, "test")
    with show.progress() as progress:
        bar = progress.add_task("training", total=None, note="")
        done = simulate(
            rows, test, parties=parties, epsilon=epsilon, delta=delta, on_step=lambda: progress.advance(bar)
        )
    answer = _simulated(done)
    if json:
        show.emit_json(answer)
    else:
        show.facts(_rows(answer))


@app.command()
def check(
    study: Annotated[Path, typer.Argument(help="The study, a TOML file.")],
    ledger: Annotated[str | None, typer.Option(help="Your ledger: is there room for the study?")] = None,
    signatures: Annotated[
        list[Path] | None, typer.Option(help="A holder's signature; repeat for each of them.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Read a study, and say what it costs and who learns what. No private row is read, nothing is charged.

    Example: sfumato holders check study.toml --ledger mine.db
    """
    from sfumato.holders import Study, read_signature
    from sfumato.ledger import Ledger

    agreed = Study.read(study)
    if signatures:
        agreed.check_signatures([read_signature(path) for path in signatures])
    answer = _priced(agreed, signed=bool(signatures))
    if ledger is not None:
        with Ledger.open(ledger) as opened:
            agreed.check_room(opened)
            answer["epsilon_left"] = opened.epsilon_left
    if json:
        show.emit_json(answer)
    else:
        show.facts(_rows(answer))


@app.command()
def sign(
    study: Annotated[Path, typer.Argument(help="The study, a TOML file.")],
    key: Annotated[Path, typer.Option(help="Your private key, from: sfumato key create.")],
    out: Annotated[Path, typer.Option(help="A new file for the signature.")],
    json: show.Json = False,
) -> None:
    """Agree to a study: every holder signs it, and none takes part in one that others have not signed.

    Example: sfumato holders sign study.toml --key delft.key --out delft.json
    """
    from sfumato.holders import Study, write_signature
    from sfumato.ledger.signing import PrivateKey

    agreed = Study.read(study)
    own = PrivateKey.read(key)
    agreed.place_of(own.public)
    write_signature(out, agreed.signed(own))
    answer = {"study": agreed.digest, "out": str(out)}
    if json:
        show.emit_json(answer)
    else:
        show.facts([("study", agreed.digest), ("signature", str(out))])


def _simulated(done: Simulated) -> dict[str, Any]:
    return {
        "test_accuracy": done.test_accuracy,
        **_priced(done.study, signed=True),
        "abandoned": done.abandoned,
        "seconds": done.seconds,
    }


def _priced(study: Study, *, signed: bool) -> dict[str, Any]:
    return {
        "study": study.digest,
        "signed": signed,
        "epsilon": study.epsilons(),
        "delta": study.delta,
        "holders": study.parties.holders,
        "threshold": study.parties.threshold,
        "rounds": study.plan.steps,
        "parameters": study.noise.dimension,
        "noise_multiplier": study.plan.noise_multiplier,
        "bits": study.modulus.bits,
        "chance_of_wrap": study.chance_of_wrap,
    }


def _rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
    against = answer["epsilon"]
    words = {
        "recipient": "who receives the model",
        "holder": "any single holder",
        "coordinator": "the coordinator",
        "coalition": "the coordinator with colluding holders",
    }
    shown = {name: value for name, value in answer.items() if name not in ("epsilon", "study")}
    return [
        ("study", answer["study"]),
        *((f"ε against {words[name]}", f"{value:.4g}") for name, value in against.items()),
        *((name.replace("_", " "), _text(value)) for name, value in shown.items()),
    ]


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
