"""The stages: done once, done again when settings change, and one failure does not stop the rest."""

from dataclasses import replace

import pytest

from sfumato.errors import BudgetExceeded, DataUnavailable
from sfumato.runs import Reports, read_run
from sfumato_lab import demo as story
from sfumato_lab.demo.context import Shelf

TINY = replace(story.QUICK, name="tiny")
RESULT = Reports(epsilon=1.0, delta=0.0, people=3, test_accuracy=0.5)


@pytest.fixture
def stage():
    """A stage that counts how often it is run, or fails as it is told."""

    def make(name, *, error=None, **more):
        def run(context):
            calls.append(name)
            context.progress(0.5)
            if error is not None:
                raise error
            return RESULT

        calls = []
        made = story.Stage(name=name, title=f"the {name}", run=run, seconds=(1, 1), uses=("rows",), **more)
        return made, calls

    return make


def result_of(path):
    return read_run(path).result


def test_a_stage_leaves_its_result_and_is_not_run_again(stage, tmp_path):
    one, calls = stage("one")
    assert [end.status for end in story.run_stages(tmp_path, TINY, stages=[one])] == ["done"]
    assert result_of(tmp_path / "tiny" / "one") == RESULT
    assert [end.status for end in story.run_stages(tmp_path, TINY, stages=[one])] == ["already done"]
    assert calls == ["one"]


def test_other_settings_are_another_run(stage, tmp_path):
    one, calls = stage("one")
    story.run_stages(tmp_path, TINY, stages=[one])
    story.run_stages(tmp_path, replace(TINY, rows=123), stages=[one])
    assert calls == ["one", "one"]
    story.run_stages(tmp_path, replace(TINY, rows=123, town=7), stages=[one])  # not a setting of this stage
    assert calls == ["one", "one"]


def test_what_is_always_out_of_date_is_always_run(stage, tmp_path):
    one, calls = stage("one", always=True)
    story.run_stages(tmp_path, TINY, stages=[one])
    story.run_stages(tmp_path, TINY, stages=[one])
    assert calls == ["one", "one"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (DataUnavailable("no source has mnist; hand a folder over"), "no source has mnist"),
        (OSError(28, "No space left on device", "/disk/x"), "No space left on device: /disk/x"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (BudgetExceeded("it does not fit", epsilon_spent=1, epsilon_left=0), "--fresh"),
    ],
)
def test_a_failure_is_named_and_the_rest_goes_on(stage, tmp_path, error, sentence):
    broken, calls = stage("broken", error=error)
    after, _ = stage("after")
    ends = story.run_stages(tmp_path, TINY, stages=[broken, after])
    assert [end.status for end in ends] == ["failed", "done"]
    assert sentence in ends[0].sentence
    failure = result_of(tmp_path / "tiny" / "broken")
    assert (failure.title, failure.sentence) == ("the broken", ends[0].sentence)
    assert "Traceback" in (tmp_path / "tiny" / "broken" / "private" / "failure.txt").read_text()
    story.run_stages(tmp_path, TINY, stages=[broken, after])
    assert calls == ["broken", "broken"]  # what failed is tried again


def test_an_interruption_is_not_a_failure(stage, tmp_path):
    one, _ = stage("one", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        story.run_stages(tmp_path, TINY, stages=[one])
    assert not (tmp_path / "tiny" / "one" / "release" / "result.json").exists()


def test_beginning_again_forgets_everything(stage, tmp_path):
    one, calls = stage("one")
    story.run_stages(tmp_path, TINY, stages=[one])
    story.begin_again(tmp_path, TINY)
    story.run_stages(tmp_path, TINY, stages=[one])
    assert calls == ["one", "one"]


def test_progress_reaches_the_listener(stage, tmp_path):
    one, _ = stage("one")
    heard = []
    story.run_stages(
        tmp_path, TINY, stages=[one], on_progress=lambda stage, share: heard.append((stage.name, share))
    )
    assert heard == [("one", 0.5)]


def test_data_that_cannot_be_had_is_looked_for_once(monkeypatch):
    looked = []

    def load(name, split, side=None):
        looked.append(split)
        raise DataUnavailable("none")

    monkeypatch.setattr("sfumato.datasets.load", load)
    shelf = Shelf("mnist")
    for split in ("train", "test", "train"):
        with pytest.raises(DataUnavailable):
            shelf.load(split)
    assert looked == ["train"]


def test_every_stage_has_a_name_of_its_own():
    names = [stage.name for stage in story.STAGES]
    assert len(names) == len(set(names))
    assert names[-1] == "ledger"  # the sum comes after what it sums
