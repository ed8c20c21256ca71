"""A study of tables over HTTPS on loopback: three nodes, one of which fails and comes back."""

import csv
import threading

import pytest
from safetensors.numpy import load_file

import sfumato
from sfumato.accounting import Budget
from sfumato.errors import NotVerified
from sfumato.holders import Study, Verified
from sfumato.holders.conduct import coordinate
from sfumato.holders.https import LetterClient, LetterServer, write_certificate
from sfumato.holders.letters import Joined, join
from sfumato.learn.table import mlp
from sfumato.ledger import Ledger
from sfumato.ledger.signing import PrivateKey
from sfumato.policy import load_policy
from sfumato.randomness import public_generator

NAMES = ("delft", "utrecht", "leiden")
COLUMNS = """
[{0}columns.age]
type = "integer"
lower = 0
upper = 99

[{0}columns.ill]
type = "boolean"
"""


class Failed(Exception):
    """A node that fails between two rounds."""


class Turns:
    """A line that lets one holder of this process work at a time: a step keys the global generators."""

    lock = threading.Lock()

    def __init__(self, line, fails_after=None):
        self.line, self.left = line, fails_after

    def receive(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Failed
        self.lock.release()
        try:
            return self.line.receive()
        finally:
            self.lock.acquire()

    def reply(self, letter):
        self.line.reply(letter)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Keys, study, policies, ledgers and a certificate, as partners make them."""
    monkeypatch.setattr(mlp, "EPOCHS", 0.5)  # four steps
    keys = {name: PrivateKey.create(tmp_path / f"{name}.key") for name in NAMES}
    lines = [f'{name} = "{(tmp_path / f"{name}.key.pub").read_text().splitlines()[1]}"' for name in NAMES]
    (tmp_path / "study.toml").write_text(
        f"""[study]
name = "who is ill"
data = "table"
classes = 2
public_size = 90
largest_share = 0.4
unit = "record"
epsilon = 2.0
delta = 1e-4
dropped = 0
colluding = 0
spare = 2

[table]
target = "ill"
rows = 1
{COLUMNS.format("table.")}
[holders]
"""
        + "\n".join(lines)
    )
    generator = public_generator(5)
    for name in NAMES:
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["age", "ill"])
            rows.writerows([int(age), bool(age > 50)] for age in generator.integers(0, 100, 30))
        budget = f'[table]\nsource = "{name}.csv"\n[budget]\nepsilon = 2.0\ndelta = 1e-4\n'
        (tmp_path / f"{name}.toml").write_text(budget + COLUMNS.format(""))
        Ledger.create(tmp_path / f"{name}.db", Budget(epsilon=2, delta=1e-4)).close()
    write_certificate(tmp_path / "c.pem", tmp_path / "c.pem.key", host="127.0.0.1")
    return tmp_path, Study.read(tmp_path / "study.toml"), keys


def take_part(folder, study, key, signed, port, name, fails_after=None):
    address, pem = f"127.0.0.1:{port}", folder / "c.pem"
    node = LetterClient(address, study=study, key=key, certificate=pem, patience=120)
    with Turns.lock, node.connected(), Ledger.open(folder / f"{name}.db") as ledger:
        return join(
            study,
            key=key,
            signatures=signed,
            line=Turns(node, fails_after),
            material=study.task.material(load_policy(folder / f"{name}.toml"), study.plan, delta=study.delta),
            ledger=ledger,
            out=folder / name,
        )


@pytest.mark.slow
def test_three_nodes_train_one_model_and_one_of_them_comes_back(folder):
    place, study, keys = folder
    signed = [study.signed(key) for key in keys.values()]
    server = LetterServer(Verified(study, signed))
    done = {}

    def holder(name, port):
        try:
            if name == "leiden":
                with pytest.raises(Failed):
                    take_part(place, study, keys[name], signed, port, name, fails_after=6)
            done[name] = take_part(place, study, keys[name], signed, port, name)
        except Exception as error:
            done[name] = error

    with server.serving("127.0.0.1", 0, certificate=place / "c.pem", key=place / "c.pem.key") as port:
        threads = [threading.Thread(target=holder, args=(name, port), daemon=True) for name in NAMES]
        for thread in threads:
            thread.start()
        whole = coordinate(study, server, out=place / "rounds", patience=30, waiting=300)
        for thread in threads:
            thread.join(60)
    assert all(isinstance(done.get(name), Joined) for name in NAMES), done
    assert whole.rounds == study.plan.steps
    assert 1 <= whole.abandoned <= study.spare
    first, *others = (load_file(place / name / "release" / "model.safetensors") for name in NAMES)
    assert all((other[name] == first[name]).all() for other in others for name in first)  # all have the same
    for name in NAMES:
        with Ledger.open(place / f"{name}.db") as ledger:
            assert len(ledger.charges()) == 1
            assert ledger.verify()
    model = sfumato.load(place / "delft")
    assert model.certificate.verify() == model.certificate.prices


def test_a_study_that_a_holder_did_not_sign_has_no_server(folder):
    _, study, keys = folder
    with pytest.raises(NotVerified):
        LetterServer(Verified(study, [study.signed(keys["delft"])]))
