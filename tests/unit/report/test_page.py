"""The page: every kind of run has its place, none is required, and nothing is fetched or run."""

import re
import shutil
from html.parser import HTMLParser
from importlib import resources

import pytest
from msgspec import structs

from sfumato.errors import InvalidInput
from sfumato.report import find_runs, write_report
from sfumato.report import releases as table
from sfumato.report.sections import SECTIONS
from sfumato.runs import EpochReport, Failure, PlainTraining, kinds

EVERYTHING = (
    "meaning",
    "dissolve",
    "frontier",
    "learning",
    "maps",
    "votes",
    "synthetic",
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
        self.text, self.hidden = "", False

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if "id" in named:
            self.ids.append(named["id"])
        self.fetched += [named[key] for key in ("src", "href") if named.get(key)]

        self.hidden = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.hidden = False

    def handle_data(self, data):
        self.text += "" if self.hidden else data


def outline(path):
    parser = Outline()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def text_of(page):
    return " ".join(outline(page.path).text.split())


def test_every_stage_of_the_demo_has_its_place(demo_folder, tmp_path):
    page = write_report([demo_folder], tmp_path / "report.html")
    assert page.sections == EVERYTHING
    assert page.headline == "Privacy cost you 0.7 points"  # 99.2 − 98.5, of the same recipe
    found = outline(page.path)
    assert set(EVERYTHING) <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_every_kind_of_result_is_drawn_by_a_section_or_is_a_row_of_the_table():
    drawn = {kind for section in SECTIONS for kind in section.kinds} | set(table.KINDS)
    assert drawn | {Failure} == set(kinds().values())


def test_every_section_has_its_template_and_its_own_name():
    names = [section.name for section in SECTIONS]
    assert len(names) == len(set(names))
    templates = resources.files("sfumato.report") / "templates"
    assert all((templates / section.template).is_file() for section in SECTIONS)


def test_a_run_of_any_kind_is_drawn_alone(own, tmp_path, write_run):
    page = write_report([write_run(tmp_path / "my-run", own)], tmp_path / "report.html")
    of_its_own = [section.name for section in SECTIONS if type(own) in section.kinds]
    if isinstance(own, Failure):
        assert page.failures == ("a stage: the disk is full",)
    elif isinstance(own, PlainTraining):
        assert "my-run" in text_of(page)
    else:
        assert set(page.sections) & set(of_its_own)


def test_a_page_about_own_data_does_not_speak_of_mnist_or_digits(own_results, tmp_path, write_run):
    for name, result in own_results.items():
        write_run(tmp_path / "runs" / name, result)
    words = text_of(write_report([tmp_path / "runs"], tmp_path / "report.html")).lower()
    assert "mnist" not in words
    assert "digit" not in words
    assert "what privacy costs" in words


def test_published_results_are_shown_beside_runs_on_their_own_data_set_only(everything, tmp_path, write_run):
    on_mnist = write_run(tmp_path / "mnist", everything["sweep"])
    elsewhere = write_run(tmp_path / "other", structs.replace(everything["sweep"], data="digits"))
    assert "Abadi 2016" in text_of(write_report([on_mnist], tmp_path / "report.html"))
    assert "Abadi 2016" not in text_of(write_report([elsewhere], tmp_path / "report.html"))
    assert "Abadi 2016" not in text_of(write_report([on_mnist, elsewhere], tmp_path / "report.html"))


@pytest.mark.keeps_out("A number on a page that no run has measured")
def test_figures_come_from_the_result(everything, tmp_path, write_run):
    """The attacked age and its averages are those of the result, in the text and on the chart."""
    page = write_report([write_run(tmp_path / "d", everything["differencing"])], tmp_path / "report.html")
    words = text_of(page)
    assert "41 · 31 − 40 · 30.25 = 61 years old" in words
    assert "exact averages: 61" in words
    assert "97" not in words.split("An age from two averages")[1].split("Drawn by")[0]


def test_the_page_needs_nothing_from_outside(demo_folder, tmp_path):
    page = write_report([demo_folder], tmp_path / "report.html")
    assert [address for address in outline(page.path).fetched if not address.startswith(("data:", "#"))] == []
    text = page.path.read_text(encoding="utf-8")
    assert re.findall(r"url\((?!data:)", text) == []
    assert "@import" not in text
    assert "http" not in re.sub(r"data:[^)\"]*", "", text)


@pytest.mark.parametrize("missing", EVERYTHING[1:])
def test_what_was_not_run_is_left_out(demo_folder, tmp_path, missing):
    folders = {
        "dissolve": ["digits"],
        "learning": ["comparison"],
        "maps": ["comparison"],
        "frontier": ["sweep", "best-recipe", "votes", "reports"],
    }
    for name in folders.get(missing, [missing]):
        shutil.rmtree(demo_folder / name)
    page = write_report([demo_folder], tmp_path / "report.html")
    assert missing not in page.sections
    assert "meaning" in page.sections


def test_a_stage_that_failed_is_named_with_its_sentence(demo_folder, tmp_path, write_run):
    shutil.rmtree(demo_folder / "audit")
    write_run(demo_folder / "audit", Failure(title="attacking the step", sentence="no <room> on the disk"))
    page = write_report([demo_folder], tmp_path / "report.html")
    assert page.failures == ("attacking the step: no <room> on the disk",)
    assert "audit" not in page.sections
    text = page.path.read_text(encoding="utf-8")
    assert "no &lt;room&gt; on the disk" in text
    assert "attacking the step" in text


def test_what_a_run_says_cannot_become_markup_or_script(everything, tmp_path, write_run):
    evil = "</script><script>alert(1)</script>"
    (charge, *_) = everything["ledger"].charges
    evil_ledger = structs.replace(everything["ledger"], charges=(structs.replace(charge, purpose=evil),))
    folder = write_run(tmp_path / "ledger", evil_ledger)
    text = write_report([folder], tmp_path / "report.html").path.read_text(encoding="utf-8")
    assert evil not in text
    assert "alert(1)" in text


def test_a_run_made_by_hand(tmp_path, write_run, own_results, certificate):
    history = [
        EpochReport(
            epoch=n, step=n, epsilon_if_fixed_in_advance=n / 10, test_accuracy=0.8 + n / 20, test_loss=0.5
        )
        for n in (1, 2)
    ]
    folder = write_run(tmp_path / "cnn", own_results["training"], certificate, history)
    page = write_report([folder], tmp_path / "report.html")
    assert page.headline == "Right 90.0% of the time"
    assert page.sections == ("meaning", "frontier", "learning", "certificates")
    assert f"sfumato verify {folder}/release/certificate.json" in outline(page.path).text


def test_a_run_without_public_test_data_is_a_row_without_accuracy(tmp_path, write_run, own_results):
    folder = write_run(tmp_path / "cnn", structs.replace(own_results["training"], test_accuracy=None))
    page = write_report([folder], tmp_path / "report.html")
    assert page.headline == "What was released"
    assert "cnn–0.9010⁻⁵the data holder" in text_of(page)


def test_a_part_of_a_larger_run_is_no_row_of_its_own(
    demo_folder, tmp_path, write_run, own_results, certificate
):
    write_run(demo_folder / "sweep" / "epsilon-1", own_results["training"], certificate)
    page = write_report([demo_folder], tmp_path / "report.html")
    assert "certificates" in page.sections  # what it cost is stated
    table_of_releases = page.path.read_text(encoding="utf-8").split("</table>")[0]
    assert "epsilon-1" not in table_of_releases


def test_runs_are_found_once(demo_folder, everything):
    assert len(find_runs([demo_folder, demo_folder / "sweep"])) == len(everything)


def test_the_private_half_is_not_read(demo_folder, tmp_path):
    (demo_folder / "audit" / "private" / "timings.json").write_text('{"seconds": 987654321}')
    page = write_report([demo_folder], tmp_path / "report.html")
    assert "987654321" not in page.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["{", "[1]", "", "{}", '{"kind": "training", "format": 2}'])
def test_a_broken_run_is_named(everything, write_run, tmp_path, content):
    folder = write_run(tmp_path / "audit", everything["audit"])
    (folder / "release" / "result.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"result\.json.*run it again"):
        write_report([folder], tmp_path / "report.html")


def test_no_run_at_all(tmp_path):
    with pytest.raises(InvalidInput, match="run folder"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(InvalidInput, match="run folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")


def test_a_place_that_cannot_be_written(demo_folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidInput, match="choose another --out"):
        write_report([demo_folder], tmp_path / "file" / "report.html")
