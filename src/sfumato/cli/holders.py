"""`sfumato holders`: several holders, one model; rows stay with their holders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato import __version__
from sfumato.cli import show
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.holders import Simulated, Study
    from sfumato.holders.tasks import Material
    from sfumato.policy import Policy

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
    holders_per_unit: Annotated[
        int, typer.Option(help="Number of holders that may have rows of the same person, at most.")
    ] = 1,
    delta: Annotated[
        float, typer.Option(help="The δ of the guarantee; choose it well below 1 / number of people.")
    ] = 1e-5,
    out: Annotated[Path | None, typer.Option(help="New run folder, for `sfumato report`.")] = None,
    json: show.Json = False,
) -> None:
    """Rehearse a study in one process, with the masks and the noise of a real one.

    Example: sfumato holders simulate --holders 10 --data mnist --epsilon 1 --colluding 3 --dropped 2
    """
    from sfumato import datasets
    from sfumato.holders import Parties, simulate
    from sfumato.holders.simulation import keep
    from sfumato.storage import RunFolder

    if out is not None:
        RunFolder(out).refuse_finished()
    parties = Parties(holders=holders, colluding=colluding, dropped=dropped)
    rows, test = datasets.load(data, "train"), datasets.load(data, "test")
    with show.progress() as progress:
        bar = progress.add_task("training", total=None, note="")
        done = simulate(
            rows,
            test,
            parties=parties,
            epsilon=epsilon,
            delta=delta,
            holders_per_unit=holders_per_unit,
            on_step=lambda: progress.advance(bar),
        )
    answer = _simulated(done)
    if out is not None:
        keep(done, out)
    if json:
        show.emit_json(answer)
    else:
        show.facts(price_rows(answer))


StudyFile = Annotated[Path, typer.Argument(help="The study, a TOML file.")]
KeyFile = Annotated[Path, typer.Option(help="Your private key, from: sfumato key create.")]
Signatures = Annotated[list[Path], typer.Option(help="A holder's signature; repeat for each of them.")]
PolicyFile = Annotated[
    Path | None, typer.Option(help="Your policy, for a study of tables: it must declare the study's columns.")
]
Certificate = Annotated[
    Path | None, typer.Option(help="The coordinator's certificate. Default: those the system trusts.")
]


@app.command()
def check(
    study: StudyFile,
    ledger: Annotated[str | None, typer.Option(help="Your ledger: is there room for the study?")] = None,
    signatures: Annotated[
        list[Path] | None, typer.Option(help="A holder's signature; repeat for each of them.")
    ] = None,
    policy: PolicyFile = None,
    coordinator: Annotated[
        str | None,
        typer.Option(help="host:port of the coordinator: does it answer, and know you? Needs --key."),
    ] = None,
    certificate: Certificate = None,
    key: Annotated[Path | None, typer.Option(help="Your private key, to try the network.")] = None,
    json: show.Json = False,
) -> None:
    """Rehearse a study: price, signatures, policy, versions, network. No row is read, nothing is charged.

    Example: sfumato holders check study.toml --ledger mine.db
    """
    from sfumato.holders import Study, read_signature
    from sfumato.holders.node import rounding
    from sfumato.ledger import Ledger

    agreed = Study.read(study)
    if signatures:
        agreed.check_signatures([read_signature(path) for path in signatures])
    answer = {
        **_priced(agreed, signed=bool(signatures)),
        "rounding": rounding(agreed),
        "margin": agreed.noise.margin,
        "sfumato": __version__,
    }
    if policy is not None:
        _declared(agreed, policy)
        answer["policy"] = "as the study declares"
    if ledger is not None:
        with Ledger.open(ledger) as opened:
            agreed.check_room(opened)
            answer["epsilon_left"] = opened.epsilon_left
    if coordinator is not None:
        answer["coordinator"] = _tried(agreed, coordinator, key, certificate)
    if json:
        show.emit_json(answer)
    else:
        show.facts(price_rows(answer))


@app.command()
def sign(
    study: StudyFile,
    key: KeyFile,
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


@app.command()
def certificate(
    host: Annotated[str, typer.Argument(help="Name or IP address under which holders reach the coordinator.")],
    out: Annotated[Path, typer.Option(help="A new file for the certificate; its key is written to OUT.key.")],
    json: show.Json = False,
) -> None:
    """Make a TLS certificate for a coordinator that has none. Give it to all holders; keep its key.

    Example: sfumato holders certificate 127.0.0.1 --out coordinator.pem
    """
    from sfumato.holders.https import write_certificate

    key = out.with_name(out.name + ".key")
    write_certificate(out, key, host=host)
    answer = {"certificate": str(out), "key": str(key)}
    if json:
        show.emit_json(answer)
    else:
        show.facts(list(answer.items()))


@app.command()
def coordinate(
    study: StudyFile,
    signatures: Signatures,
    certificate: Annotated[
        Path, typer.Option(help="TLS certificate; its key is beside it, named CERTIFICATE.key.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the rounds. An interrupted study is resumed from it.")],
    address: Annotated[
        str, typer.Option(help="host:port to listen on; port 0 chooses a free one.")
    ] = "127.0.0.1:9092",
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for an answer; who is later is lost.")
    ] = 60.0,
    waiting: Annotated[float, typer.Option(help="Seconds to wait for enough holders.")] = 3600.0,
    json: show.Json = False,
) -> None:
    """Run a study: pass the holders' messages on, and add up their numbers.

    Example: sfumato holders coordinate study.toml --signatures delft.json --signatures utrecht.json
    --signatures leiden.json --certificate coordinator.pem --out rounds
    """
    from sfumato.holders import Study, Verified, read_signature
    from sfumato.holders.conduct import coordinate
    from sfumato.holders.https import LetterServer, host_and_port

    agreed = Study.read(study)
    verified = Verified(agreed, [read_signature(path) for path in signatures])
    server = LetterServer(verified, largest=agreed.largest_letter)
    host, port = host_and_port(address)
    beside = certificate.with_name(certificate.name + ".key")
    with server.serving(host, port, certificate=certificate, key=beside) as bound, show.progress() as progress:
        show.errors.print(f"listening on {host}:{bound}")
        bar = progress.add_task("rounds", total=agreed.plan.steps, note="")
        done = coordinate(
            agreed,
            server,
            out=out,
            patience=patience,
            waiting=waiting,
            on_round=lambda number: progress.update(bar, completed=number),
        )
    answer = {
        "study": agreed.digest,
        "rounds": done.rounds,
        "abandoned": done.abandoned,
        "seconds": done.seconds,
    }
    if json:
        show.emit_json(answer)
    else:
        show.facts([(name, show.in_words(value)) for name, value in answer.items()])


@app.command()
def join(
    study: StudyFile,
    key: KeyFile,
    signatures: Signatures,
    coordinator: Annotated[str, typer.Option(help="host:port of the coordinator.")],
    ledger: Annotated[str, typer.Option(help="Your ledger. It is charged before a row is read.")],
    out: Annotated[Path, typer.Option(help="Run folder for the model. An interrupted study is resumed.")],
    certificate: Certificate = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Your folder or .npz of images, or mnist, digits …; or a file to read with --policy."
        ),
    ] = None,
    policy: PolicyFile = None,
    part: Annotated[
        str | None, typer.Option(help="To try it out: 2/3 takes every third row, from the second.")
    ] = None,
    test_data: Annotated[Path | None, typer.Option(help="Public rows of a table to measure on.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for the coordinator.")] = 3600.0,
    json: show.Json = False,
) -> None:
    """Take part in a study with your own data. Rows and gradients stay here.

    Example: sfumato holders join study.toml --key delft.key --signatures delft.json --signatures utrecht.json
    --signatures leiden.json --data scans --ledger mine.db --coordinator 127.0.0.1:9092 --certificate
    coordinator.pem --out out/study
    """
    from sfumato.holders import Study, read_signature
    from sfumato.holders.https import LetterClient
    from sfumato.holders.letters import join
    from sfumato.ledger import Ledger
    from sfumato.ledger.signing import PrivateKey

    agreed, own = Study.read(study), PrivateKey.read(key)
    material = _material(agreed, data, policy, part, test_data)
    signed = [read_signature(path) for path in signatures]
    agreed.check_signatures(signed)
    client = LetterClient(
        coordinator,
        study=agreed,
        key=own,
        certificate=certificate,
        patience=patience,
        largest=agreed.largest_letter,
    )
    with Ledger.open(ledger) as book, client.connected(), show.progress() as progress:
        bar = progress.add_task("rounds", total=agreed.plan.steps, note="")
        done = join(
            agreed,
            key=own,
            signatures=signed,
            line=client,
            material=material,
            ledger=book,
            out=out,
            on_step=lambda trainer: progress.advance(bar),
        )
        answer = {
            **_priced(agreed, signed=True),
            **done.measured,
            "abandoned": done.abandoned,
            "epsilon_left": book.epsilon_left,
            "out": str(out),
            "seconds": done.seconds,
        }
    if json:
        show.emit_json(answer)
    else:
        show.facts(price_rows(answer))


def _material(
    study: Study, data: str | None, policy: Path | None, part: str | None, test_data: Path | None
) -> Material:
    """Prepare training on this holder's data; no row is read yet."""
    from sfumato.holders.tasks import Table, images_of

    if isinstance(study.task, Table):
        if part is not None:
            raise InvalidInput("expected --part with images only, got it with a study of tables; leave it out")
        own = _declared(study, policy, source=data)
        return study.task.material(own, study.plan, delta=study.delta, test=test_data)
    if data is None or policy is not None or test_data is not None:
        raise InvalidInput("expected --data, and neither --policy nor --test-data, for a study of images")
    return study.task.material(*images_of(data, classes=study.classes, part=part))


def _declared(study: Study, policy: Path | None, *, source: str | None = None) -> Policy:
    """Return the holder's policy, if it declares the study's columns."""
    from sfumato.holders.tasks import Table
    from sfumato.policy import load_policy

    if not isinstance(study.task, Table) or policy is None:
        raise InvalidInput(
            "expected --policy with a study of tables, and with no other; see: holders join --help"
        )
    own = load_policy(policy, source=source)
    study.task.check_policy(own)
    return own


def _tried(study: Study, coordinator: str, key: Path | None, certificate: Path | None) -> str:
    """Try whether the coordinator lets this holder in."""
    from sfumato.holders.https import LetterClient
    from sfumato.ledger.signing import PrivateKey

    if key is None:
        raise InvalidInput("expected --key with --coordinator, got none; the coordinator knows you by it")
    own = PrivateKey.read(key)
    client = LetterClient(coordinator, study=study, key=own, certificate=certificate, patience=5.0)
    with client.connected():
        return "lets you in"


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


def price_rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that a command prints of a study and its price."""
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
        *((name.replace("_", " "), show.in_words(value)) for name, value in shown.items()),
    ]
