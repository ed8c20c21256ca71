"""A study: what all parties sign, and what it costs."""

import base64
import json

import pytest

from sfumato.accounting import Budget
from sfumato.errors import BudgetExceeded, InvalidInput, NotVerified
from sfumato.holders import Study, read_signature, write_signature
from sfumato.ledger import Ledger
from sfumato.ledger.signing import PrivateKey


@pytest.fixture
def text(signing_key):
    prefix = bytes.fromhex("302a300506032b6570032100")
    lines = [
        f'h{place} = "{base64.b64encode(prefix + signing_key(place).public.raw).decode()}"'
        for place in range(1, 7)
    ]
    return "\n".join(
        [
            "[study]",
            'name = "digits"',
            'data = "digits"',
            "classes = 10",
            "public_size = 1400",
            "largest_share = 0.2",
            'unit = "record"',
            "epsilon = 1.0",
            "delta = 1e-5",
            "dropped = 1",
            "colluding = 2",
            "spare = 3",
            "[holders]",
            *lines,
        ]
    )


@pytest.fixture
def study(text, tmp_path):
    place = tmp_path / "study.toml"
    place.write_text(text)
    return Study.read(place)


def test_the_keys_are_those_of_the_public_files(tmp_path, text):
    """The line between BEGIN and END of what `sfumato key create` writes."""
    key = PrivateKey.create(tmp_path / "k")
    line = (tmp_path / "k.pub").read_text().splitlines()[1]
    place = tmp_path / "study.toml"
    place.write_text(text.replace(text.splitlines()[-1], f'h6 = "{line}"'))
    assert Study.read(place).place_of(key.public) == 6


def test_the_price_is_kept_against_every_adversary(study):
    against = study.epsilons()
    assert 0.99 <= max(against.values()) <= 1.0
    assert against["coalition"] == max(against.values())
    assert against["recipient"] == against["coordinator"] < against["holder"] < against["coalition"]
    assert study.plan.steps == 200 + 3  # rounds that may be abandoned are priced like the others
    assert study.chance_of_wrap <= 1e-9


def test_signatures_of_all_are_needed(study, signing_key, tmp_path):
    said = [study.signed(signing_key(place)) for place in range(1, 7)]
    study.check_signatures(said)
    for wrong in (said[:-1], [*said[:-1], study.signed(signing_key(9))], []):
        with pytest.raises(NotVerified, match=r"none of h[16]"):
            study.check_signatures(wrong)
    write_signature(tmp_path / "s.json", said[0])
    assert read_signature(tmp_path / "s.json") == said[0]
    with pytest.raises(InvalidInput, match="no file"):
        write_signature(tmp_path / "s.json", said[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epsilon = 1.0", "epsilon = 2.0"),
        ("colluding = 2", "colluding = 1"),
        ("spare = 3", "spare = 4"),
        ('unit = "record"', 'unit = "person"'),
        ("h1 = ", "h0 = "),
    ],
)
def test_a_signature_is_for_one_study(study, text, tmp_path, signing_key, old, new):
    place = tmp_path / "other.toml"
    place.write_text(text.replace(old, new))
    other = Study.read(place)
    said = [study.signed(signing_key(number)) for number in range(1, 7)]
    assert other.digest != study.digest
    with pytest.raises(NotVerified):
        other.check_signatures(said)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("spare = 3", ""),
        ("spare = 3", "spare = 3\nseed = 1"),
        ("dropped = 1", "dropped = 3"),
        ("epsilon = 1.0", 'epsilon = "1"'),
        ("delta = 1e-5", "delta = 0.0"),
        ("[holders]", "[more]\n[holders]"),
        ("classes = 10", "classes = ["),
        ("MCow", "XXXX"),
    ],
)
def test_what_is_not_a_study_is_refused(text, tmp_path, old, new):
    place = tmp_path / "study.toml"
    place.write_text(text.replace(old, new))
    with pytest.raises(InvalidInput, match="expected"):
        Study.read(place)


def test_one_key_twice_is_refused(text, tmp_path):
    lines = text.splitlines()
    place = tmp_path / "study.toml"
    place.write_text("\n".join([*lines[:-1], "h6" + lines[-2][2:]]))
    with pytest.raises(InvalidInput, match="different"):
        Study.read(place)


def test_room_is_asked_of_the_holders_own_ledger(study, tmp_path):
    with Ledger.open(tmp_path / "wide.db", Budget(epsilon=1, delta=1e-5)) as ledger:
        study.check_room(ledger)
        assert ledger.epsilon_spent == 0
    with (
        Ledger.open(tmp_path / "narrow.db", Budget(epsilon=0.9, delta=1e-5)) as ledger,
        pytest.raises(BudgetExceeded),
    ):
        study.check_room(ledger)


def test_rounds_are_numbered_from_one_to_the_last(study):
    assert study.terms(1).id != study.terms(2).id
    for number in (0, study.plan.steps + 1):
        with pytest.raises(InvalidInput, match="round"):
            study.terms(number)


@pytest.mark.parametrize("content", ["[]", "nothing", json.dumps("x")])
def test_what_is_no_signature_is_refused(tmp_path, content):
    place = tmp_path / "s.json"
    place.write_text(content)
    with pytest.raises(InvalidInput, match="expected"):
        read_signature(place)
