"""Synthetic images end to end on drawings: one plan, one charge, a sampler that loads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import sfumato
from sfumato.accounting import Budget, compose
from sfumato.cli.verify import check_plan
from sfumato.datasets import Dataset
from sfumato.errors import BudgetExceeded, DataCorrupted, InvalidInput, NotVerified
from sfumato.learn import DIGITS, Classifier
from sfumato.learn.features import SCENES
from sfumato.learn.statistic import StatisticPlan
from sfumato.ledger import Certificate, Ledger, Unrecorded
from sfumato.ledger.rule import same_releases
from sfumato.randomness import SecretStream
from sfumato.released import MODEL, model_bytes, read_model
from sfumato_lab.drawings import shapes, strokes
from sfumato_lab.images import (
    ImagePlan,
    ImageRequest,
    ImageSampler,
    PublicSet,
    StyleSettings,
    learn_sampler,
    release,
    release_images,
)
from sfumato_lab.images import sampler as moves
from sfumato_lab.images.measures import coverage, frechet, learn, nearest_distances
from sfumato_lab.images.plan import Statistics, StatisticsPlan
from sfumato_lab.images.sampler import KEPT, SLACK, SUREST, Choice, Moves, sampler_bytes
from sfumato_lab.images.styles import Styles

QUICK = replace(DIGITS, drawn=400, directions=64, steps=20, sample_rate=0.5)
SMALL = StyleSettings(drawings=1000, directions=8)


def private_rows(count: int = 1200, **more) -> Dataset:
    images, labels = strokes.draw(count, seed=11)
    told = {"name": "strokes", "classes": 10, "public_size": count, **more}
    return Dataset(
        inputs=(images[:, np.newaxis] / 255).astype(np.float32), targets=labels, visibility="private", **told
    )


def wanted(rows: Dataset, **more) -> ImageRequest:
    terms = {"images": 200, "epsilon": 8.0, "settings": SMALL, "recipe": QUICK, **more}
    return ImageRequest.of(rows, **terms)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    rows = private_rows()
    with Ledger.open(folder / "l.db", budget=Budget(epsilon=8.5, delta=1e-5)) as ledger:
        found = release_images(
            wanted(rows),
            rows,
            ledger=ledger,
            out=folder / "s.npz",
            sampler=SecretStream(),
            test=private_rows(300),
        )
        return folder, found, ledger.charges(), ledger.epsilon_spent


def test_all_is_charged_at_once_and_costs_what_was_asked(made):
    _, found, charges, spent = made
    assert [charge.purpose for charge in charges] == ["synthetic images"]
    assert 8.0 * 0.99 <= found.epsilon <= 8.0
    assert spent == pytest.approx(found.epsilon)


def test_the_files_hold_images_labels_a_sheet_and_a_report(made):
    folder, found, *_ = made
    with np.load(folder / "s.npz") as content:
        assert content["images"].shape == (200, 28, 28)
        assert content["images"].dtype == np.uint8
        assert content["labels"].tolist() == found.drawn.labels.tolist()
    assert (folder / "s.png").read_bytes().startswith(b"\x89PNG")
    assert sum(line["images"] for line in found.report["classes"]) == 200
    assert "Fréchet distance" in (folder / "s.fidelity.txt").read_text()


def test_published_labels_are_those_that_the_head_is_sure_of(made):
    _, found, *_ = made
    drawn = found.drawn
    assert len(drawn) == 200
    assert drawn.tried >= 200 / SUREST - 1
    chances = torch.softmax(found.sampler.head(torch.from_numpy(drawn.images).unsqueeze(1) / 255), dim=1)
    assert chances.argmax(dim=1).tolist() == drawn.labels.tolist()


def test_the_certificate_is_of_the_plan_and_another_plan_is_found_out(made):
    stated = Certificate.read(made[0] / "s.certificate.json")
    assert stated.verify().pld == pytest.approx(made[1].epsilon)
    assert check_plan(stated)
    less_noise = {**stated.plan["images"]["statistics"], "noise_multiplier": 0.1}
    other = {**stated.plan, "images": {**stated.plan["images"], "statistics": less_noise}}
    with pytest.raises(NotVerified):
        check_plan(replace(stated, plan=other))


def test_the_sampler_loads_and_draws_the_same_again(made):
    folder, found, *_ = made
    again = sfumato.load(folder / "s.sampler")
    assert isinstance(again, ImageSampler)
    assert again.certificate == Certificate.read(folder / "s.certificate.json")
    one, two = found.sampler.draw(30, seed=5), again.draw(30, seed=5)
    assert np.array_equal(one.images, two.images)
    assert np.array_equal(one.labels, two.labels)
    assert not np.array_equal(one.images, again.draw(30, seed=6).images)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("counts", torch.zeros(9, dtype=torch.float64)),
        ("choice.weights", torch.full((10, 8), float("inf"), dtype=torch.float64)),
        ("view.directions", torch.full((576, 8), float("nan"))),
        ("head.head.weight", torch.zeros(9, 768)),
    ],
)
def test_a_damaged_sampler_is_refused(made, tmp_path, name, value):
    card, tensors = read_model(made[0] / "s.sampler" / MODEL)
    (tmp_path / MODEL).write_bytes(model_bytes(card, {**tensors, name: value}))
    (tmp_path / "certificate.json").write_bytes((made[0] / "s.certificate.json").read_bytes())
    with pytest.raises(DataCorrupted):
        sfumato.load(tmp_path)


@pytest.mark.parametrize("prior", ["shapes", "strokes"])
def test_drawings_of_their_kinds_are_for_as_many_classes_as_there_are_kinds(made, tmp_path, prior):
    """A file that somebody made by hand may say otherwise."""
    settings = StyleSettings(prior=prior, matched=False, drawings=200, directions=8)
    sampler = ImageSampler(
        styles=Styles.of(settings, classes=12),
        statistics=None,
        head=None,
        class_names=tuple(map(str, range(12))),
    )
    (tmp_path / MODEL).write_bytes(sampler_bytes(sampler, QUICK))
    (tmp_path / "certificate.json").write_bytes((made[0] / "s.certificate.json").read_bytes())
    assert len(sfumato.load(tmp_path).class_names) == 12
    card, tensors = read_model(tmp_path / MODEL)
    forged = {**card.settings, "styles": {**card.settings["styles"], "matched": True}}
    (tmp_path / MODEL).write_bytes(model_bytes(replace(card, settings=forged), tensors))
    with pytest.raises(DataCorrupted, match="damaged or of another version"):
        sfumato.load(tmp_path)
    with pytest.raises(InvalidInput, match="at most 10 classes"):
        replace(sampler.styles, settings=replace(settings, matched=True))


def test_a_sampler_that_keeps_nothing_stops(made):
    sampler = made[1].sampler
    never = replace(
        sampler.choice, weights=0 * sampler.choice.weights, offsets=0 * sampler.choice.offsets - 1e9
    )
    with pytest.raises(InvalidInput, match="hardly any"):
        replace(sampler, choice=never).draw(1, seed=1)


def test_a_plan_that_does_not_fit_is_refused_before_any_row_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(release.features, "fitted", lambda rows: pytest.fail("a row was read"))
    rows = private_rows()
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            release_images(
                wanted(rows, epsilon=2.0), rows, ledger=ledger, out=tmp_path / "s.npz", sampler=SecretStream()
            )
        assert ledger.charges() == []
    assert [place.name for place in tmp_path.iterdir()] == ["l.db"]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_controls_are_the_same_release_with_all_of_the_budget_in_one_part(share):
    rows = private_rows()
    request = wanted(rows, head_share=share, epsilon=4.0)
    assert (request.plan.head is None, request.plan.statistics is None) == (share == 0, share == 1)
    assert 4.0 * 0.99 <= request.plan.epsilon(1e-5) <= 4.0
    sampler = learn_sampler(request, rows, ledger=Unrecorded(delta=1e-5), sampler=SecretStream())
    assert len(sampler.draw(20, seed=1)) == 20


def test_a_plan_survives_its_json():
    plan = wanted(private_rows()).plan
    assert ImagePlan.from_json(plan.to_json()) == plan


MEASURES = replace(
    QUICK, extractors=("scattering",), steps=2, directions=16, statistic="moment", statistic_share=0.5
)


@pytest.mark.keeps_out(
    "A part of a release that its charge does not hold, such as what a recipe measures first"
)
@pytest.mark.parametrize("share", [0.7, 1.0])
def test_what_a_recipe_measures_first_is_in_the_plan_and_in_the_charge(tmp_path, monkeypatch, share):
    released = []

    def noted(kind):
        whole = kind.measure

        def measure(self, *args, **more):
            released.append(self.event())
            return whole(self, *args, **more)

        monkeypatch.setattr(kind, "measure", measure)

    noted(StatisticPlan)
    noted(StatisticsPlan)
    rows = private_rows(100)
    request = wanted(rows, images=20, recipe=MEASURES, head_share=share)
    with Ledger.create(tmp_path / "l.db", Budget(epsilon=9, delta=1e-5)) as ledger:
        found = release_images(request, rows, ledger=ledger, out=tmp_path / "s.npz", sampler=SecretStream())
        (charge,) = ledger.charges()
    assert len(released) == (1 if share == 1.0 else 2)
    assert same_releases(charge.event, compose(*released, request.plan.head.event()))
    assert 8.0 * 0.99 <= found.epsilon <= 8.0
    assert check_plan(found.certificate)
    assert ImagePlan.from_json(request.plan.to_json()) == request.plan
    assert sfumato.load(tmp_path / "s.sampler").draw(5, seed=1).images.shape == (5, 28, 28)


@pytest.mark.keeps_out(
    "A part of a release that its charge does not hold, such as what a recipe measures first"
)
def test_a_head_is_not_trained_under_another_charge_than_its_own(monkeypatch):
    rows = private_rows(100)
    request = wanted(rows, recipe=MEASURES)
    cheaper = replace(request.plan, measured=None)
    monkeypatch.setattr(StatisticPlan, "measure", lambda *args, **more: pytest.fail("measured"))
    ready = Classifier.prepare(rows, epsilon=5.6, recipe=MEASURES)
    ready = replace(ready, statistic=request.plan.measured, plan=request.plan.head)
    with pytest.raises(InvalidInput, match="expected a charge of all that this run releases"):
        ready.train(paid=cheaper.head_event())


def test_a_plan_written_before_recipes_measured_is_still_read():
    plan = wanted(private_rows()).plan
    written = plan.to_json()["images"]
    assert written.pop("measured") is None
    assert ImagePlan.from_json({"images": written}) == plan


@pytest.mark.parametrize(
    ("more", "rows", "words"),
    [
        ({"images": 0}, {}, "images"),
        ({"recipe": SCENES}, {}, "expected a recipe for images of shape"),
        ({"delta": 0.0}, {}, "delta > 0"),
        ({}, {"public_size": None}, "declare"),
        ({}, {"unit": "person"}, "one image for each person"),
        ({"head_share": 1.5}, {}, "head_share"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_sentence(more, rows, words):
    with pytest.raises(InvalidInput, match=words):
        wanted(private_rows(20, **rows), **more)


def test_a_request_is_for_its_own_rows():
    with pytest.raises(InvalidInput, match="for which the request was made"):
        wanted(private_rows(20)).check_rows(private_rows(30))


def test_a_release_is_made_once(made):
    folder = made[0]
    with pytest.raises(InvalidInput, match="made once"):
        release.ImagePlaces(folder / "s.npz")
    with pytest.raises(InvalidInput, match="npz"):
        release.ImagePlaces(folder / "s.csv")


@pytest.fixture(scope="module")
def digits() -> Styles:
    return Styles.of(StyleSettings(drawings=4000, directions=8), classes=10)


def digit_means(styles: Styles, means, *, sigma: float = 1.0) -> Statistics:
    """Of a million people in each class, whose means lie so many standard deviations from the drawings'."""
    scales = np.stack([places.std(axis=0) for places in styles.places])
    return Statistics(
        counts=np.full(10, 1e6),
        sums=1e6 * scales * means / styles.reach,
        moments=None,
        count_sigma=1.0,
        sum_sigma=sigma,
        moment_sigma=1.0,
    )


def test_chosen_drawings_have_the_mean_that_was_measured_up_to_the_slack(digits):
    """Where the convex function is least, the mean falls short by the slack times the weights."""
    wanted = np.array([0.5, -0.5, 0.0, 0.0, 0.3, 0.0, 0.0, 0.0])
    choice = Choice.of(digit_means(digits, wanted), digits)
    for label, places in enumerate(digits.places):
        scale = places.std(axis=0)
        chances = choice.chances(places, np.full(len(places), label))
        assert chances.mean() == pytest.approx(KEPT, abs=1e-4)
        found = chances @ ((places - digits.centres[label]) / scale) / chances.sum()
        assert found == pytest.approx(wanted - SLACK * choice.weights[label] * scale, abs=1e-3)
        assert found @ wanted > 0.4 * wanted @ wanted  # most of the way, as drawings there are not rare


def test_where_the_noise_hides_the_means_all_drawings_have_the_same_chance(digits):
    wanted = np.full(8, 0.1)
    choice = Choice.of(digit_means(digits, wanted, sigma=1e7), digits)
    chances = choice.chances(digits.places[3], np.full(len(digits.places[3]), 3))
    assert np.allclose(chances, KEPT, atol=1e-4)


@pytest.fixture(scope="module")
def things() -> Styles:
    settings = StyleSettings(prior="shapes", drawings=3000, directions=4)
    return Styles.of(settings, classes=3)


def noiseless(mean, spread) -> Statistics:
    """Of a million people in each of three classes."""
    people = 1e6
    moments = people * (spread + np.einsum("i,j->ij", mean, mean))
    return Statistics(
        counts=np.full(3, people),
        sums=np.tile(people * mean, (3, 1)),
        moments=np.tile(moments, (3, 1, 1)),
        count_sigma=1.0,
        sum_sigma=1.0,
        moment_sigma=1.0,
    )


@pytest.mark.parametrize("anew", [0.0, 0.5, 1.0])
def test_moved_drawings_have_the_mean_and_covariance_that_were_measured(things, monkeypatch, anew):
    monkeypatch.setattr(moves, "ANEW", anew)
    monkeypatch.setattr(moves, "_FARTHEST", 100.0)  # in a use, no direction is stretched that far
    mean, spread = np.array([0.2, -0.1, 0.0, 0.0, 0.05]), np.diag([0.2, 0.05, 0.02, 0.02, 0.01])
    made = Moves.of(noiseless(mean, spread), things)
    generator = np.random.default_rng(1)
    for label in range(3):
        root = np.linalg.cholesky(things.spreads[label])
        places = things.centres[label] + things.reach * generator.standard_normal((20_000, 5)) @ root.T
        labels = np.full(len(places), label)
        found = (places + made.steps(places, labels, generator) - things.centres[label]) / things.reach
        assert found.mean(axis=0) == pytest.approx(mean, abs=0.02)
        assert np.cov(found.T) == pytest.approx(spread, abs=0.03)


def test_where_the_noise_hides_everything_drawings_stay_where_they_are(things):
    noise = np.random.default_rng(2)
    lost = Statistics(
        counts=np.full(3, 50.0),
        sums=30 * noise.standard_normal((3, 5)),
        moments=30 * noise.standard_normal((3, 5, 5)),
        count_sigma=30.0,
        sum_sigma=30.0,
        moment_sigma=30.0,
    )
    places = things.centres + 0.5
    assert np.abs(Moves.of(lost, things).steps(places, np.arange(3), noise)).max() < 1e-9


def test_directions_that_the_noise_hides_keep_their_length(things, monkeypatch):
    """The noise of a covariance is not taken for variance: maps stay nearer to those of exact sums."""
    generator = np.random.default_rng(3)
    mean, spread = np.zeros(5), things.spreads[0]
    exact = noiseless(mean, spread)
    half = np.triu(generator.standard_normal((3, 5, 5)))
    noise = 1e5 * (half + half.swapaxes(1, 2)) / 2
    noisy = replace(exact, moments=exact.moments + noise, moment_sigma=1e5)

    def error() -> float:
        return float(np.abs(Moves.of(noisy, things).maps - Moves.of(exact, things).maps).max())

    cautious = error()
    monkeypatch.setattr(moves, "_HIDDEN", 0.0)
    assert cautious < error()


def test_a_floor_of_variance_keeps_short_directions_and_lets_long_ones_go():
    """√((4 + f)/(1 + f)) and √((.01 + f)/(.0001 + f)) at f = .1 and 2% of the mean variance."""
    found = moves.transport(np.diag([1.0, 1e-4]), np.diag([4.0, 1e-2]), floor=0.1)
    floor = 0.1 + 0.02 * (1.0 + 1e-4) / 2
    expected = np.sqrt((np.array([4.0, 1e-2]) + floor) / (np.array([1.0, 1e-4]) + floor))
    assert found == pytest.approx(np.diag(expected))


def test_things_are_moved_towards_private_ones(tmp_path):
    """Dark shapes in place of bright ones: the synthetic ones darken."""
    settings = StyleSettings(prior="shapes", drawings=3000, directions=8)
    images, kinds = shapes.draw(1500, seed=9)
    dark = (images[kinds < 10] // 3)[:, np.newaxis] / 255
    rows = Dataset(
        inputs=dark.astype(np.float32), targets=kinds[kinds < 10], visibility="private",
        name="fashion-mnist", classes=10, public_size=len(dark),
    )  # fmt: skip
    request = ImageRequest.of(rows, images=50, epsilon=8.0, settings=settings, recipe=QUICK, head_share=0.0)
    sampler = learn_sampler(request, rows, ledger=Unrecorded(delta=1e-5), sampler=SecretStream())
    assert sampler.draw(200, seed=1).images.mean() < 0.7 * images.mean()


def public_set(count: int = 400) -> PublicSet:
    images, labels = strokes.draw(count, seed=4)
    return PublicSet(images=images, kinds=labels)


def test_images_may_start_from_a_public_set_that_the_holder_names(tmp_path):
    rows, public = private_rows(), public_set()
    settings = StyleSettings(prior="public", drawings=800, directions=8)
    request = wanted(rows, settings=settings, public=public, images=60)
    made = release_images(
        request, rows, ledger=Unrecorded(delta=1e-5), out=tmp_path / "s.npz", sampler=SecretStream()
    )
    assert any("says is public" in line for line in made.certificate.caveats)
    assert nearest_distances(made.drawn.images, public.images).min() > 1e-3  # moved: none is a copy
    again = sfumato.load(tmp_path / "s.sampler")
    assert np.array_equal(made.sampler.draw(20, seed=2).images, again.draw(20, seed=2).images)


def test_a_public_set_without_images_of_a_class_is_refused_before_anything_is_paid():
    rows, public = private_rows(), public_set()
    few = PublicSet(images=public.images[public.kinds < 9], kinds=public.kinds[public.kinds < 9])
    settings = StyleSettings(prior="public", drawings=800, directions=8)
    request = wanted(rows, settings=settings, public=few)
    with pytest.raises(InvalidInput, match="none of class 9"):
        learn_sampler(request, rows, ledger=None, sampler=SecretStream())
    with pytest.raises(InvalidInput, match="with no other"):
        Styles.of(settings, classes=10)


def test_a_public_set_of_one_image_for_each_class_is_refused_before_anything_is_paid():
    rows, public = private_rows(), public_set()
    first = [int(np.flatnonzero(public.kinds == number)[0]) for number in range(10)]
    same = PublicSet(images=public.images[first], kinds=public.kinds[first])
    request = wanted(rows, settings=StyleSettings(prior="public", drawings=100, directions=8), public=same)
    with pytest.raises(InvalidInput, match="differ within their class"):
        learn_sampler(request, rows, ledger=None, sampler=SecretStream())


@pytest.mark.parametrize("trousers", [-9.0, 2.0], ids=["impossible", "of another family"])
def test_a_thing_that_the_head_takes_for_something_else_is_left_out(things, trousers):
    """A head that reads everything as a T-shirt (0), which a pullover (2) might be and trousers (1) not."""

    class Head(torch.nn.Module):
        def forward(self, images):
            return torch.tensor([[3.0, trousers, 1.0]]).repeat(len(images), 1)

    sampler = ImageSampler(styles=things, statistics=None, head=Head(), class_names=("a", "b", "c"))
    images, kinds = np.zeros((6, 28, 28), np.uint8), np.array([0, 1, 2, 0, 1, 2])
    found = sampler._labelled(images, kinds)
    assert (len(found), found.unsure, set(found.labels)) == (4, 2, {0})


def test_measures_tell_copies_and_missing_styles():
    generator = np.random.default_rng(1)
    real = generator.normal(size=(200, 3))
    assert frechet(real, real) == pytest.approx(0.0, abs=1e-8)
    assert coverage(real, real) == 1.0
    assert coverage(np.full_like(real, 100.0), real) == 0.0
    images = strokes.draw(20, seed=1)[0]
    assert nearest_distances(images[:5], images).max() < 1e-3
    assert nearest_distances(255 - images[:5], images).min() > 0.3


def test_a_reader_learns_drawings_it_is_given():
    images, labels = strokes.draw(1000, seed=3)
    found = learn(images, labels, classes=10, epochs=3)
    assert found.held_out_accuracy > 0.5  # guessing gets a tenth
