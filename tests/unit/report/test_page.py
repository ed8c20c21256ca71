"""The page: every kind of run has its place, none is required, and nothing is fetched or run."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from sfumato.accounting import GaussianEvent
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate
from sfumato.report import find_runs, write_report

EVERYTHING = (
    "meaning",
    "dissolve",
    "frontier",
    "learning",
    "maps",
    "votes",
    "differencing",
    "membership",
    "audit",
    "epidemic",
    "ledger",
)


class Outline(HTMLParser):
    """Addresses within the page, and everything a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.ids, self.fetched, self.open = [], [], []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if "id" in named:
            self.ids.append(named["id"])
        self.fetched += [named[key] for key in ("src", "href") if named.get(key)]

    def handle_data(self, data):
        self.text += data


def outline(path):
    parser = Outline()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def test_every_kind_of_run_has_its_place(whole_story, tmp_path):
    page = write_report([whole_story], tmp_path / "report.html")
    assert page.sections == EVERYTHING
    assert page.headline == "Privacy cost you 0.7 points"  # 99.2 − 98.5, of the same recipe
    found = outline(page.path)
    assert set(EVERYTHING) <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_the_page_needs_nothing_from_outside(whole_story, tmp_path):
    page = write_report([whole_story], tmp_path / "report.html")
    assert [address for address in outline(page.path).fetched if not address.startswith(("data:", "#"))] == []
    text = page.path.read_text(encoding="utf-8")
    assert re.findall(r"url\((?!data:)", text) == []
    assert "@import" not in text
    assert "http" not in re.sub(r"data:[^)\"]*", "", text)


@pytest.mark.parametrize("missing", EVERYTHING[1:])
def test_what_was_not_run_is_left_out(whole_story, tmp_path, missing):
    kind = {"dissolve": "digits", "learning": "plain-and-private", "maps": "plain-and-private"}.get(missing)
    if missing == "frontier":
        shutil.rmtree(whole_story / "sweep")
        kind = "best-recipe"
    shutil.rmtree(whole_story / (kind or missing))
    page = write_report([whole_story], tmp_path / "report.html")
    assert missing not in page.sections
    assert "meaning" in page.sections


def test_a_stage_that_failed_is_named_with_its_sentence(write_stage, whole_story, tmp_path):
    shutil.rmtree(whole_story / "audit")
    write_stage("audit", status="failed", title="attacking the step", sentence="no <room> on the disk")
    page = write_report([whole_story], tmp_path / "report.html")
    assert page.failures == ("attacking the step: no <room> on the disk",)
    assert "audit" not in page.sections
    text = page.path.read_text(encoding="utf-8")
    assert "no &lt;room&gt; on the disk" in text
    assert "attacking the step" in text


def test_what_a_run_says_cannot_become_markup_or_script(write_stage, tmp_path):
    evil = "</script><script>alert(1)</script>"
    result = {"charges": [{"entry": 1, "purpose": evil, "epsilon": 1.0, "epsilon_spent": 1.0, "private": True}]}
    folder = write_stage("ledger", **result)
    text = write_report([folder], tmp_path / "report.html").path.read_text(encoding="utf-8")
    assert evil not in text
    assert "alert(1)" in text


def test_a_run_made_by_hand(tmp_path, write_run):
    certificate = Certificate.of(GaussianEvent(4.0), purpose="my model", delta=1e-5).to_json()
    result = {"algorithm": "training", "epsilon": 0.9, "delta": 1e-5, "test_accuracy": 0.9, "test_loss": 0.3}
    folder = write_run(tmp_path / "cnn", result, certificate)
    lines = [{"epoch": n, "test_accuracy": 0.8 + n / 20, "test_loss": 0.5} for n in (1, 2)]
    (folder / "release" / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = write_report([folder], tmp_path / "report.html")
    assert page.headline == "Right 90.0% of the time"
    assert page.sections == ("meaning", "frontier", "learning", "certificates")
    assert f"sfumato verify {folder}/release/certificate.json" in outline(page.path).text


def test_runs_are_found_once(whole_story, kinds):
    assert len(find_runs([whole_story, whole_story / "sweep"])) == len(kinds)


def test_the_private_half_is_not_read(whole_story, tmp_path):
    secret = whole_story / "audit" / "private"
    secret.mkdir()
    (secret / "timings.json").write_text(json.dumps({"seconds": 987654321}))
    page = write_report([whole_story], tmp_path / "report.html")
    assert "987654321" not in page.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_a_broken_run_is_named(write_stage, tmp_path, content):
    folder = write_stage("audit")
    (folder / "release" / "result.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"result\.json.*run it again"):
        write_report([folder], tmp_path / "report.html")


def test_no_run_at_all(tmp_path):
    with pytest.raises(InvalidInput, match="run folder"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(InvalidInput, match="run folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")


def test_a_place_that_cannot_be_written(whole_story, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidInput, match="choose another --out"):
        write_report([whole_story], tmp_path / "file" / "report.html")
