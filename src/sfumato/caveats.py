"""Caveats: the limits of a guarantee, each a value with a stable code, parameters and one sentence.

`Code` lists every caveat that Sfumato writes. A member makes a `Caveat`: the sentence, which carries its code.

>>> caveat = Code.EXCERPT()
>>> caveat.code, caveat.to_json()["code"]
(<Code.EXCERPT: 'excerpt'>, 'excerpt')
>>> Caveat("rows of 2024 only").code
<Code.OTHER: 'other'>
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from sfumato import _validate
from sfumato.display import visible

BROKEN = "The figure does not hold"
COUNTED = "What the figure counts"
ASSUMED = "What is assumed"
ORIGIN = "Where features and settings came from"
USE = "How useful the release is"
PARTIES = "Several holders"
FILE = "The file"
NOTHING = "Nothing to do."


class Code(Enum):
    """One kind of caveat: its code, sentence, meaning for the person who signs, and remedy.

    `{names}` in a sentence are its parameters. The value of a member is the code in JSON, and never changes.
    """

    sentence: str
    section: str
    meaning: str
    remedy: str

    def __new__(cls, code: str, section: str, sentence: str, meaning: str, remedy: str) -> Code:
        member = object.__new__(cls)
        member._value_ = code
        member.section, member.sentence, member.meaning, member.remedy = section, sentence, meaning, remedy
        return member

    def __call__(self, **parameters: str | float) -> Caveat:
        """Make the caveat with these parameters."""
        shown = {name: visible(one) if isinstance(one, str) else one for name, one in parameters.items()}
        return Caveat(self.sentence.format(**shown), code=self, parameters=shown)

    @property
    def names(self) -> frozenset[str]:
        """The names of the parameters."""
        return frozenset(name for _, name, _, _ in string.Formatter().parse(self.sentence) if name)

    OTHER = ("other", FILE, "{text}", "A sentence of the program that called Sfumato.", "Ask its author.")

    SEEDED = (
        "seeded",
        BROKEN,
        "not private: the noise came from a seeded stream, and an attacker who knows the seed can subtract it",
        "The release is a test. There is no protection against an attacker who knows or guesses the seed.",
        "Run again without a seed: no `sampler=`, and `random_state=None`. The charge stays.",
    )
    READ_FROM_DATA = (
        "read-from-data",
        BROKEN,
        "not private: read from data: {facts}",
        "Classes, size or bounds were taken from the rows as they are. They are part of the release, and ε "
        "does not cover them.",
        "Declare them: `classes=`, `public_size=` and `bounds=`, or a policy.",
    )
    SEEDED_CHOICE = (
        "seeded-choice",
        BROKEN,
        "not private: rows or settings were chosen by draws from a seeded stream, so that a record that "
        "leaves may move others, or show in the choice",
        "`keep_out` or `keep_some` was given a seeded `sampler=`. Such coins start anew at the first row, so "
        "a row gets the coin of another row once a record has left.",
        "Leave out `sampler=`, choose anew, and release that. The charge stays.",
    )
    NO_PROTECTION = (
        "no-protection",
        BROKEN,
        "promises practically no protection: {why}",
        "ε is above 10, or δ is .001 or more, or there is no finite ε.",
        "Train or ask with less ε, at a δ well below 1 / number of people.",
    )

    UNRECORDED = (
        "unrecorded",
        COUNTED,
        "not entered in a ledger: other releases from the same data are not counted here",
        "The ε is that of this release alone. Other releases from the same people add to it, and are not "
        "added up here.",
        "Give `--ledger`, or `ledger=` in Python.",
    )
    RESERVED = (
        "reserved",
        COUNTED,
        "reserved as entry {entry} of a ledger, and not settled: the whole plan counts there; call finish(), "
        "and take the certificate then",
        "The run was not over when the certificate was taken. Its ledger counts the whole plan, but the "
        "certificate names no charge.",
        "Call `trainer.finish()` and then `trainer.certificate(…)`.",
    )
    STOPPED_EARLY = (
        "stopped-early",
        COUNTED,
        "stopped early: how much of the plan ran was decided while it ran, so the exact price of the shorter "
        "plan does not hold; pld is that of the whole plan, rdp that of the steps that ran by a filter at "
        "orders fixed before; each holds however the stop was decided; the smaller here is {smaller}",
        "Both figures hold. Both are larger than that of a plan which was shorter from the beginning. Quote "
        "the first, the price of the whole plan: it was fixed before the run. The second is for the steps "
        "that ran. It is computed in another way, and so it may be the smaller one here.",
        "Let a plan run to its end, or plan fewer steps.",
    )
    COUNTED_AS = (
        "counted-as",
        COUNTED,
        "the ledger counts it as {relation}: {event}",
        "The release was priced for add-remove and charged to a ledger of replace-one, at the price that is "
        "named. The ledger's figure is the one that counts.",
        "Price releases under the relation of the ledger.",
    )
    EXCERPT = (
        "excerpt",
        COUNTED,
        "the data set is an excerpt by place of a larger one, and neighbours are neighbours of the excerpt",
        "The first rows of a file were used. The guarantee is for people in these rows, and takes it as known "
        "which rows they are.",
        "Use all rows, or draw some by coins: `--train-size`, `training.keep_some`.",
    )
    SHAPE_READ = (
        "shape-read",
        COUNTED,
        "read from data: the shape and type of a row, from the first record; one of another shape in its "
        "place would decide who counts; declare a public example",
        "The shape of one record was read without noise. That is harmless if all records have one shape, "
        "which you then vouch for.",
        "Give `example=`, or a `Dataset`.",
    )
    ITEMS_BY_OWN_CODE = (
        "items-by-own-code",
        COUNTED,
        "items-by-own-code: code of the holder's made the rows (a data set, a collate_fn, or preparation "
        "before fit); that it makes each row of one record alone is taken on trust",
        "ε is for one row. Preparation that lets one record change the rows of others (a scaler or an imputer "
        "fitted on all rows, a search with exact scores, a split by position) is not counted. Every "
        "scikit-learn estimator says it, as it cannot know the preparation before `fit`.",
        "Hand over columns as they are: tensors, arrays, frames, Parquet. In scikit-learn use "
        "`BoundedScaler`, `CoinSplit` and `NoisyAccuracyScorer`, or `sfumato tune`; the sentence stays.",
    )
    PUBLIC_CONSTANT = (
        "public-constant",
        COUNTED,
        "a tensor of shape {shape} in the code at {place} was taken as public",
        "The model, the loss or the views brought a tensor along that is neither a parameter nor a buffer nor "
        "a row, such as class weights. If it was computed from the rows, it tells about them without noise.",
        "Know where it comes from: write it down, or pay for the counts behind it.",
    )
    ONE_UNIT_ID = (
        "one-unit-id",
        COUNTED,
        "the guarantee is for one unit id, which decides the teacher by a keyed hash",
        "If a person has rows under two ids, two teachers may see that person, and the guarantee is for each "
        "id by itself.",
        "Give each person one id.",
    )
    ONE_REPORT_EVER = (
        "one-report-ever",
        COUNTED,
        "one report per person, ever: a second release of the same people would cost as much again",
        "No ledger can count it for you if people send reports themselves.",
        "Do not repeat a local release; ask everything at once.",
    )
    NO_CURATOR = (
        "no-curator",
        COUNTED,
        "each record was noised by itself, as on its owner's device; no curator need be trusted with the file",
        "The file itself is safe to hand over. It says nothing against the release.",
        NOTHING,
    )
    ROW_IS_PERSON = (
        "row-is-person",
        COUNTED,
        "every row is one person",
        "The policy names no column for people. A person with two rows sends two reports, which cost twice.",
        "Name the column: `[unit] column` in the policy.",
    )
    ONE_ROW_BY_COIN = (
        "one-row-by-coin",
        COUNTED,
        "one report for each {unit}, of one of its rows, chosen by a secret coin",
        "Of people with several rows one row counts.",
        NOTHING,
    )
    ROWS_LEFT_OUT = (
        "rows-left-out",
        COUNTED,
        "Each {unit} counts with at most {most}; further rows are left out.",
        "Answers leave out rows of people who have more than count. ε is for whole people.",
        "Raise `rows` or `groups` in the policy; noise grows with them.",
    )
    ONE_MADE_ROW = (
        "one-made-row",
        COUNTED,
        "Each {unit} counts with one row, made of all its rows.",
        "A sub-query per person reads all of a person's rows.",
        NOTHING,
    )
    JOINED_ROWS = (
        "joined-rows",
        COUNTED,
        "Of {table} at most {most} of each {unit} are joined.",
        "A joined private table is cut to the rows of a person that its policy lets count.",
        "Raise `rows` of that table in the policy.",
    )
    CUT_OFF = (
        "cut-off",
        COUNTED,
        "{value} beyond {ends} counts as the nearer end.",
        "A count or sum of a person's rows ends where that of `rows` rows does.",
        "Raise `rows` in the policy, or say a range with `LEAST` and `GREATEST`.",
    )
    UNITS_COUNTED = (
        "units-counted",
        COUNTED,
        "Each {unit} counts once, whatever its number of rows.",
        "People are counted, so that no row is left out.",
        NOTHING,
    )
    IN_NO_GROUP = (
        "in-no-group",
        COUNTED,
        "Rows whose {values} are in no group.",
        "Groups do not add up to all rows: those without a declared value are in none. It is said of every "
        "such query, whether there are such rows or not.",
        "Declare the category, or group by `COALESCE(column, 'unknown')`.",
    )
    MOST_GROUPS = (
        "most-groups",
        COUNTED,
        "Of all groups the {most} with the most units, by noisy counts, are shown.",
        "The groups are not declared, and more were found than one answer holds.",
        "Declare the categories, group by fewer columns, or ask for one aggregate at a time.",
    )
    GAUSSIAN_NOISE = (
        "gaussian-noise",
        COUNTED,
        "Noise is Gaussian, which needs the budget's δ.",
        "The answer is (ε, δ), not pure ε.",
        "Ask with `--noise laplace`.",
    )
    SOME_HOLDERS = (
        "some-holders",
        COUNTED,
        "Over the rows of {present} of {holders} holders{several}.",
        "Holders who did not answer are not in the figure. A person with rows at several holders counts at "
        "each that is named.",
        "Ask again when all take part; that costs again.",
    )
    MEASURED_BESIDE = (
        "measured-beside",
        COUNTED,
        "the history holds measurements on records kept out, which are entries of their own in the ledger; ε "
        "of training and measurements together: {epsilon:.4g}",
        "The figure is that of training. The history beside it was paid for as well, and together they cost "
        "the ε that the sentence ends with.",
        "Train without `stopping=`, or count both.",
    )

    IDEAL_NORMAL = (
        "ideal-normal",
        ASSUMED,
        "the float64 normal {draws} taken as ideal",
        "Noise is rounded to a grid, so that low bits betray nothing. That the generator's normal numbers "
        "have the right tails is taken from its authors.",
        "Training cannot do without it. Queries and counts draw whole numbers exactly.",
    )
    IDEAL_SAMPLER = (
        "ideal-sampler",
        ASSUMED,
        "the sampler is taken as ideal",
        "The same, for the generator of this release.",
        NOTHING,
    )
    ROUNDING_OF_PARTS = (
        "rounding-of-parts",
        ASSUMED,
        "rounding errors are stated for the first measurement; the head has its own bound",
        "η on the certificate is for the first of two parts. The noise of the second covers rounding of its "
        "own.",
        NOTHING,
    )
    OWN_SAMPLER = (
        "own-sampler",
        ASSUMED,
        "the noise came from a sampler of the user's own; that its draws are secret, and as random as the "
        "price assumes, is taken on trust",
        "`sampler=` was given an object whose code is not Sfumato's. If it draws too little, there is less "
        "protection than ε says, or none.",
        "Leave out `sampler=`, or know who wrote it.",
    )
    SHUFFLED = (
        "shuffled",
        ASSUMED,
        "shuffled batches: priced without amplification by sampling",
        "The price does not count on chance. It is larger for that, and safe.",
        "Poisson sampling, the default, costs less.",
    )
    FIXED_ORDER = (
        "fixed-order",
        ASSUMED,
        "batches in a fixed, public order: priced without amplification by sampling",
        'The same, for `sampling="cyclic"`. Neighbours are those of zero-out.',
        "Poisson sampling, if its accuracy is enough.",
    )

    PRIOR_PUBLIC = (
        "prior-public",
        ORIGIN,
        "public prior {name} (sha256 {digest}…): {data}",
        "The model stands on a network that ships with Sfumato and learned from the named material, from no "
        "person's data.",
        "Train a network from random weights: `--model cnn`.",
    )
    PRIOR_OWN = (
        "prior-own",
        ORIGIN,
        "network {name} (sha256 {digest}…) is not the one that ships: its training data are the word of its "
        "maker",
        "If that network saw private data, ε does not cover them.",
        "Use the networks that ship, or ask who made this one.",
    )
    PRIOR_CHOSE_REPORTS = (
        "prior-chose-reports",
        ORIGIN,
        "the public prior {name}, learnt from drawings, chose what is reported; it costs nothing",
        "The reported features were chosen without looking at any person.",
        "`--prior none` reports low frequencies of the image.",
    )
    PRIOR_ADAPTED = (
        "prior-adapted",
        ORIGIN,
        "features come from a public prior drawn by code, adapted to the public images without their labels",
        "The images that the labels are for must really be public.",
        "Nothing to do, if they are.",
    )
    WEIGHTS_FROM_DRAWINGS = (
        "weights-from-drawings",
        ORIGIN,
        "first weights learned from {name}, digits drawn by code, which are nobody's data",
        "As for a public prior.",
        "Start from random weights.",
    )
    PUBLIC_BY_WORD = (
        "public-by-word",
        ORIGIN,
        "images start from a set that the holder says is public; ε does not cover the people in it",
        "You vouch for that set.",
        "Leave out `--prior`, or name drawings.",
    )
    SETTINGS_CHARGED = (
        "settings-charged",
        ORIGIN,
        "settings were chosen on the private rows, which is charged",
        "The search for settings is in the ε.",
        NOTHING,
    )
    SETTINGS_ON_THESE_ROWS = (
        "settings-on-these-rows",
        ORIGIN,
        "settings were chosen on training rows of this very data set, uncharged: ε does not cover that choice",
        "For the public benchmarks (MNIST, Fashion-MNIST, CIFAR-10) learning rates and the like had been "
        "tried on their rows.",
        "It does not concern data of your own.",
    )
    SETTINGS_UNCHARGED = (
        "settings-uncharged",
        ORIGIN,
        "settings were chosen on {rows}",
        "No row of yours was used, unless yours is the named data set. Figures on that data set flatter a "
        "little.",
        NOTHING,
    )
    SETTINGS_PUBLISHED = (
        "settings-published",
        ORIGIN,
        "settings as published by others, who chose them on MNIST",
        "A reproduction. Their search is not in the ε.",
        "It does not concern data of your own.",
    )
    PRIOR_VALIDATED = (
        "prior-validated",
        ORIGIN,
        "the prior was validated on scikit-learn's digits, so that accuracy on them flatters it",
        "Accuracy on `digits` is no measure of accuracy elsewhere.",
        "Measure on other data.",
    )
    IMAGE_CHOICES = (
        "image-choices",
        ORIGIN,
        "how digits are chosen, how things are moved, and which images are left out, was set on training "
        "images of MNIST and Fashion-MNIST, uncharged: for these ε does not cover that choice; the head's "
        "share of the budget is that of an earlier way, whose accuracy on MNIST's public test images had been "
        "seen",
        "No row of yours was used, unless yours is one of the two.",
        "It does not concern data of your own.",
    )

    DRAWN_FROM_MARGINALS = (
        "drawn-from-marginals",
        USE,
        "the table is drawn from a model of noisy marginals; rows are nobody's, and combinations that were "
        "not measured may be wrong",
        "Read the fidelity report before you use the table for a question.",
        "Name the columns that must be kept: `--target`, `--workload`.",
    )
    POLICY_BOUNDS = (
        "policy-bounds",
        USE,
        "bounds and categories are the policy's, not the data's",
        "Smallest and largest values in the table are declared, not observed.",
        NOTHING,
    )
    INDEPENDENT = (
        "independent",
        USE,
        "epsilon is too small to learn how columns depend on each other: they are drawn independently",
        "Only single columns are right.",
        "Spend more ε, or keep fewer columns: `--columns`.",
    )
    LEFT_OUT = (
        "left-out",
        USE,
        "left out on purpose: {columns}",
        "The release does not use these columns of the policy.",
        "Leave out `--leave-out`; declare `categories`, or `lower` and `upper`.",
    )
    NOT_WITH_TARGET = (
        "not-with-target",
        USE,
        "not measured together with the target {target}: {columns}",
        "How these columns go with the target is inferred, and may be wrong.",
        "Spend more ε, or declare coarser categories.",
    )
    ROWS_MISSING = (
        "rows-missing",
        USE,
        "{rows} rows are missing: the model gives hardly anything but impossible combinations",
        "Rules of the policy forbid most of the rows that were drawn.",
        "Look at `[synthesis]` in the policy.",
    )
    DRAWINGS = (
        "drawings",
        USE,
        "images are drawings, chosen or moved as the noisy statistics of private ones say; they are nobody's",
        "No image is a person's. They look like drawings.",
        NOTHING,
    )
    LABELS_BY_HEAD = (
        "labels-by-head",
        USE,
        "the head's labels are right as often as the head is; images that it is not sure of are left out",
        "Labels of synthetic images are partly wrong.",
        "Spend more ε.",
    )

    NOISE_BY_HOLDERS = (
        "noise-by-holders",
        PARTIES,
        "noise made by {holders} holders; the price counts the {counted} shares that are left with {dropped} "
        "holders lost and {colluding} colluding with the coordinator",
        "The ε holds as long as no more holders are lost or collude.",
        "Agree on larger numbers in the study; noise grows with them.",
    )
    EACH_ADVERSARY = (
        "each-adversary",
        PARTIES,
        "ε against each adversary at δ={delta:g}: {epsilons}",
        "A coordinator or a holder sees more than the recipient, and has an ε of its own. Sign for the "
        "largest that concerns you.",
        NOTHING,
    )
    LYING_HOLDER = (
        "lying-holder",
        PARTIES,
        "a holder that lies in its numbers, or adds no noise, is not seen under masks; the declared number of "
        "colluding holders covers those",
        "More liars than were declared break the figure.",
        "Declare more colluding holders.",
    )

    UNSIGNED = (
        "unsigned",
        FILE,
        "not signed: the key that SFUMATO_KEY names could not be used",
        "The release is as it should be, but a reader cannot check who wrote the certificate.",
        "Sign it now: `sfumato key sign`.",
    )


_CODES = {code.value: code for code in Code}
OUTSIDE_THE_FIGURE = frozenset({Code.SEEDED, Code.READ_FROM_DATA, Code.SEEDED_CHOICE})
"""Codes of releases that are not private."""


class Caveat(str):
    """A sentence about the limits of a release, with the code and the parameters that it was made from.

    Args:
        text: The sentence; characters that are not seen become escapes.
        code: Its code; `Code.OTHER` for a sentence of the caller's own.
        parameters: The values in the sentence.
    """

    code: Code
    parameters: Mapping[str, str | float]

    def __new__(
        cls, text: str, *, code: Code = Code.OTHER, parameters: Mapping[str, str | float] | None = None
    ) -> Caveat:
        made = super().__new__(cls, _validate.text("caveats", visible(text)))
        made.code, made.parameters = code, dict(parameters or {})
        return made

    def to_json(self) -> Any:
        """Return the caveat as an object of code, text and parameters, or as it was read from a file."""
        return getattr(self, "_written", None) or {
            "code": self.code.value,
            "text": str(self),
            **({"parameters": dict(self.parameters)} if self.parameters else {}),
        }

    @classmethod
    def from_json(cls, data: object) -> Caveat:
        r"""Read a caveat from an untrusted file.

        An unknown code, or a text that is not the sentence of its code, reads as `Code.OTHER`.

        >>> Caveat.from_json({"code": "seeded", "text": "all is well\x1b[2J"})
        'all is well\\x1b[2J'
        """
        if isinstance(data, str):
            text, code, parameters = data, None, {}
        elif isinstance(data, Mapping) and {"code", "text"} <= set(data) <= {"code", "text", "parameters"}:
            text, code, parameters = data["text"], data["code"], data.get("parameters", {})
        else:
            raise _validate.refusal("caveats", data, "to be objects of code, text and parameters")
        found = cls(text if isinstance(text, str) else _validate.text("caveats", text))
        known = _CODES.get(code) if isinstance(code, str) else None
        if known is not None and _fits(known, parameters) and known(**parameters) == text:
            found.code, found.parameters = known, dict(parameters)
        found._written = data  # type: ignore[attr-defined]  # a signature covers it
        return found


def _fits(code: Code, parameters: object) -> bool:
    return (
        isinstance(parameters, Mapping)
        and code is not Code.OTHER
        and set(parameters) == code.names
        and all(_is_value(code, name, value) for name, value in parameters.items())
    )


def _is_value(code: Code, name: str, value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number or (isinstance(value, str) and f"{{{name}:" not in code.sentence)


def as_caveats(sentences: Iterable[str]) -> tuple[Caveat, ...]:
    """Return caveats as they are, and other sentences as caveats of code `other`."""
    if isinstance(sentences, str):
        raise _validate.refusal("caveats", sentences, "to be a list of sentences")
    return tuple(
        one if isinstance(one, Caveat) else Caveat(_validate.sentences("caveats", [one])[0])
        for one in sentences
    )


def codes(caveats: Iterable[Caveat]) -> frozenset[Code]:
    """Return the codes of some caveats."""
    return frozenset(caveat.code for caveat in caveats)
