"""`sfumato holders`: several holders, one release; rows stay with their holders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato import __version__
from sfumato.cli import show
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.holders import Study, SumStudy
    from sfumato.holders.tasks import Material
    from sfumato.policy import Policy

app = typer.Typer(
    help="Train one model over the data of several holders, who show each other nothing.", no_args_is_help=True
)

Data = Annotated[str, typer.Option(help="mnist, fashion-mnist, digits or strokes; its test images are public.")]
Delta = Annotated[
    float, typer.Option(help="The δ of the guarantee; choose it well below 1 / number of people.")
]
Holders = Annotated[int, typer.Option(help="Number of holders among whom the rows are dealt out.")]
Colluding = Annotated[int, typer.Option(help="Number of holders that may collude with the coordinator.")]
Dropped = Annotated[
    int, typer.Option(help="Number of holders that may be lost in a round; as many are, others each time.")
]
PerUnit = Annotated[int, typer.Option(help="Number of holders that may have rows of the same person, at most.")]
Masks = Annotated[
    bool,
    typer.Option(
        "--masks/--no-masks",
        help="Leave the masks out, to rehearse hundreds of holders faster. The sums are the same.",
    ),
]
StudyFile = Annotated[Path, typer.Argument(help="The study, a TOML file.")]
KeyFile = Annotated[Path, typer.Option(help="Your private key, from: sfumato key create.")]
Signatures = Annotated[list[Path], typer.Option(help="A holder's signature; repeat for each of them.")]
PolicyFile = Annotated[
    Path | None, typer.Option(help="Your policy, for a study of tables: it must declare the study's columns.")
]
Certificate = Annotated[
    Path | None, typer.Option(help="The coordinator's certificate. Default: those the system trusts.")
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="holders")


# Rehearsals in one process


@app.command()
def simulate(
    data: Data,
    epsilon: Annotated[float, typer.Option(help="ε against the best informed adversary.")],
    holders: Holders = 10,
    colluding: Colluding = 0,
    dropped: Dropped = 0,
    holders_per_unit: PerUnit = 1,
    delta: Delta = 1e-5,
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
    if out is not None:
        keep(done, out)
    priced = _priced(done.study, signed=True)
    ended = {"abandoned": done.abandoned, "seconds": done.seconds}
    _tell({"test_accuracy": done.test_accuracy, **priced, **ended}, json=json)


@app.command()
def vote(
    data: Data,
    epsilon: Annotated[float, typer.Option(help="ε of all labels, against the best informed adversary.")],
    holders: Holders = 100,
    teachers: Annotated[int, typer.Option(help="Number of teachers that each holder hosts.")] = 2,
    colluding: Colluding = 0,
    dropped: Dropped = 0,
    holders_per_unit: PerUnit = 1,
    mechanism: Annotated[str, typer.Option(help="gnmax or confident.")] = "gnmax",
    queries: Annotated[
        int | None, typer.Option(help="Number of public images to label. Default: as many as the noise allows.")
    ] = None,
    delta: Delta = 1e-5,
    masks: Masks = True,
    json: show.Json = False,
) -> None:
    """Rehearse PATE across holders: their teachers label public images, and no party sees a vote.

    Example: sfumato holders vote --holders 100 --data mnist --epsilon 1 --colluding 10 --dropped 5
    """
    from dataclasses import replace

    from sfumato import datasets
    from sfumato.datasets.drawings import prior_for
    from sfumato.holders import Parties, VoteTerms, simulate_votes
    from sfumato.holders.rehearsals import affordable_queries
    from sfumato.pate import Adaptation, PateSettings, VotePlan

    parties = Parties(holders=holders, colluding=colluding, dropped=dropped)
    side = 28 if data == "digits" else None
    private, test = datasets.load(data, "train", side=side), datasets.load(data, "test", side=side)
    classes = test.classes or 2
    asked = queries or affordable_queries(
        parties, teachers=teachers, classes=classes, epsilon=epsilon, delta=delta, most=len(test)
    )
    confident = mechanism == "confident"
    terms = VoteTerms(
        mechanism=mechanism,
        teachers=teachers,
        queries=asked,
        classes=classes,
        holders_per_unit=holders_per_unit,
        answers=max(1, asked // 2) if confident else None,
        threshold=0.6 * parties.least * teachers if confident else None,
    )
    unused = VotePlan(mechanism="gnmax", teachers=1, queries=asked, classes=classes, sigma=1.0)
    done = simulate_votes(
        private,
        replace(test, visibility="public"),
        parties=parties,
        terms=terms,
        settings=PateSettings(plan=unused, adaptation=Adaptation(prior=prior_for(data))),
        epsilon=epsilon,
        delta=delta,
        masked=masks,
    )
    answer = {name: getattr(done, name) for name in ("student_accuracy", "start_accuracy", "label_accuracy")}
    answer |= {"asked": asked, "answered": int((done.labels >= 0).sum()), "teachers": holders * teachers}
    _tell({**answer, **_sums_priced(done.study, masks=masks), "seconds": done.seconds}, json=json)


@app.command()
def average(
    data: Data,
    epsilon: Annotated[float, typer.Option(help="ε of a client with all its rows, all its rounds together.")],
    clients: Annotated[int, typer.Option(help="Number of clients among whom the rows are dealt out.")] = 1000,
    cohort: Annotated[
        int | None, typer.Option(help="Number of clients that are picked for a round. Default: all of them.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 12,
    colluding: Colluding = 0,
    dropped: Dropped = 0,
    delta: Delta = 1e-5,
    masks: Masks = True,
    json: show.Json = False,
) -> None:
    """Rehearse federated averaging with the privacy of whole clients.

    Sampling of clients saves nothing: the coordinator knows the picked ones. Each pays for the rounds it is in.

    Example: sfumato holders average --clients 1000 --data mnist --epsilon 8 --no-masks
    """
    from sfumato import datasets
    from sfumato.holders import AveragingTerms, Parties, simulate_averaging

    parties = Parties(holders=cohort or clients, colluding=colluding, dropped=dropped)
    terms = AveragingTerms(clients=clients, rounds=rounds)
    rows, test = datasets.load(data, "train"), datasets.load(data, "test")
    with show.progress() as progress:
        bar = progress.add_task("averaging", total=rounds, note="")
        done = simulate_averaging(
            rows,
            test,
            parties=parties,
            terms=terms,
            epsilon=epsilon,
            delta=delta,
            masked=masks,
            on_round=lambda: progress.advance(bar),
        )
    answer = {"test_accuracy": done.test_accuracy, **_sums_priced(done.study, masks=masks), "clients": clients}
    answer |= {"rounds_of_a_client": done.study.taken or rounds, "abandoned": done.abandoned}
    _tell({**answer, "seconds": done.seconds}, json=json)


@app.command()
def attack(
    holders: Annotated[int, typer.Option(help="Number of holders.")] = 10,
    colluding: Annotated[int, typer.Option(help="Number of holders that collude with the coordinator.")] = 3,
    dropped: Annotated[int, typer.Option(help="Number of holders that are lost in each round.")] = 2,
    noise_multiplier: Annotated[float, typer.Option(help="σ of the shares that count, over C.")] = 1.0,
    canaries: Annotated[int, typer.Option(help="Number of canaries.")] = 40_000,
    pairs: Annotated[int, typer.Option(help="Number of pairs of rounds.")] = 8,
    delta: Delta = 1e-5,
    json: show.Json = False,
) -> None:
    """Attack unsampled rounds as the coordinator with colluding holders, and compare with the exact price.

    Example: sfumato holders attack --holders 10 --colluding 3 --dropped 2
    """
    from sfumato.holders import Parties
    from sfumato.holders.rehearsals import attack_round

    parties = Parties(holders=holders, colluding=colluding, dropped=dropped)
    found = attack_round(
        parties, noise_multiplier=noise_multiplier, canaries=canaries, pairs=pairs, delta=delta
    )
    answer = {name: getattr(found, name) for name in ("claimed_epsilon", "lower_bound", "delta", "alpha")}
    _tell(answer, json=json)


# Studies between machines


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
    _tell(answer, json=json)


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

    agreed, own = Study.read(study), PrivateKey.read(key)
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
    _tell({"certificate": str(out), "key": str(key)}, json=json)


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
    ended = {"rounds": done.rounds, "abandoned": done.abandoned, "seconds": done.seconds}
    _tell({"study": agreed.digest, **ended}, json=json)


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
        left = book.epsilon_left
    ended = {"abandoned": done.abandoned, "epsilon_left": left, "out": str(out), "seconds": done.seconds}
    _tell({**_priced(agreed, signed=True), **done.measured, **ended}, json=json)


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
    """Check that the coordinator lets this holder in."""
    from sfumato.holders.https import LetterClient
    from sfumato.ledger.signing import PrivateKey

    if key is None:
        raise InvalidInput("expected --key with --coordinator, got none; the coordinator knows you by it")
    own = PrivateKey.read(key)
    client = LetterClient(coordinator, study=study, key=own, certificate=certificate, patience=5.0)
    with client.connected():
        return "lets you in"


# Answers


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


def _sums_priced(study: SumStudy, *, masks: bool) -> dict[str, Any]:
    return {
        "study": study.digest,
        "epsilon": study.epsilons(),
        "delta": study.delta,
        "unit": study.unit,
        "holders": study.parties.holders,
        "threshold": study.parties.threshold,
        "rounds": len(study.rounds),
        "masks": masks,
    }


def _tell(answer: dict[str, Any], *, json: bool) -> None:
    """Print an answer; of a study its price against each adversary comes first."""
    if json:
        show.emit_json(answer)
        return
    words = {
        "recipient": "who receives the model",
        "holder": "any single holder",
        "coordinator": "the coordinator",
        "coalition": "the coordinator with colluding holders",
    }
    first = [("study", answer["study"])] if "study" in answer else []
    first += [(f"ε against {words[name]}", f"{value:.4g}") for name, value in answer.get("epsilon", {}).items()]
    rest = {name: value for name, value in answer.items() if name not in ("epsilon", "study")}
    show.facts([*first, *((name.replace("_", " "), show.in_words(value)) for name, value in rest.items())])
