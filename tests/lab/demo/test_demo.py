"""The demo from beginning to end, on the digits that come with scikit-learn and at the least size."""

import json
from dataclasses import replace

import pytest

from sfumato.learn import features
from sfumato.local import views
from sfumato_lab import demo as story
from sfumato_lab.demo import releases as synthetic
from sfumato_lab.images import StyleSettings

TINY = replace(
    story.QUICK,
    name="demo-quick",
    data="digits",
    rows=600,
    test_rows=400,
    plain_epochs=2,
    private_epochs=2,
    sweep_epochs=1,
    sweep_epsilons=(1.0, 4.0),
    sweep_seeds=(1,),
    recipe_epsilons=(1.0, 2.0),
    recipe_seeds=(1,),
    teachers=150,  # fewer would be drowned by the noise after one answer
    vote_rows=600,
    vote_images=200,
    vote_adaptation=0,
    synthetic_rows=600,
    synthetic_images=60,
    readers_drawings=500,
    readers_test=40,
    differencing_tries=20,
    reconstruction_people=16,
    reconstruction_queries=8,
    audit_pairs=8,
    membership_rows=120,
    membership_networks=6,
    membership_targets=2,
    town=300,
    days=12,
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Where a whole demo was run, and how it answered."""
    from typer.testing import CliRunner

    from sfumato.cli.app import app

    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "QUICK", TINY)
        patch.setattr(features, "DIGITS", replace(features.DIGITS, drawn=500, directions=32, steps=10))
        patch.setattr(views, "_DRAWINGS", 1500)
        patch.setattr(synthetic, "_SETTINGS", StyleSettings(drawings=600, directions=8))
        first = CliRunner().invoke(app, ["demo", "--quick", "--json", "--out", str(out)])
        again = CliRunner().invoke(app, ["demo", "--quick", "--out", str(out)])
    return out, first, again


def test_all_stages_are_done_and_the_page_is_there(demo):
    out, first, _ = demo
    assert first.exit_code == 0, first.output
    answer = json.loads(first.stdout)
    assert {stage["status"] for stage in answer["stages"]} == {"done"}
    assert [stage["stage"] for stage in answer["stages"]] == [stage.name for stage in story.STAGES]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert answer["headline"] in page
    assert "What did not work" not in page


def test_every_part_of_the_story_is_on_the_page(demo):
    page = (demo[0] / "report.html").read_text(encoding="utf-8")
    for part in (
        *(
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
        ),
        *("epidemic", "ledger", "certificates"),
    ):
        assert f'<section id="{part}">' in page


def test_run_again_it_takes_up_what_is_done(demo):
    _, _, again = demo
    assert again.exit_code == 0, again.output
    assert again.stdout.count("done before") == len([stage for stage in story.STAGES if not stage.always])


def test_one_ledger_holds_every_private_network_and_refuses_one_more(demo):
    folder = demo[0] / "demo-quick"
    told = json.loads((folder / "ledger" / "release" / "result.json").read_text(encoding="utf-8"))
    assert len(told["charges"]) >= 1 + len(TINY.sweep_epsilons)
    assert 0 < told["epsilon_spent"] <= told["epsilon"]
    assert "does not" in told["refusal"]


def test_each_certificate_can_be_checked(demo, sfumato_json):
    certificates = sorted(demo[0].rglob("certificate.json"))
    assert len(certificates) >= 3
    assert sfumato_json("verify", certificates[0])["pld"] > 0


def test_a_failing_stage_gives_exit_code_1_and_a_page(tmp_path, sfumato, monkeypatch):
    def fail(context):
        raise OSError(28, "No space left on device", str(tmp_path))

    stages = (
        story.Stage(name="digits", title="digits dissolving", run=fail, seconds=(1, 1)),
        next(stage for stage in story.STAGES if stage.name == "differencing"),
    )
    monkeypatch.setattr(story, "STAGES", stages)
    monkeypatch.setattr(story, "QUICK", TINY)
    code, out, _ = sfumato("demo", "--quick", "--out", tmp_path)
    assert code == 1
    assert "✗ digits dissolving: No space left on device" in out
    assert "✓ an age out of two averages" in out
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No space left on device" in page
    assert '<section id="differencing">' in page


def test_a_page_of_chosen_runs(demo, sfumato, tmp_path):
    out = demo[0] / "demo-quick" / "sweep"
    code, printed, _ = sfumato("report", out, "--out", tmp_path / "page.html")
    assert code == 0
    assert "certificates" in printed
    assert (tmp_path / "page.html").stat().st_size > 10_000
