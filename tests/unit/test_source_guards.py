"""Rules that the source itself must keep."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sfumato

PACKAGE = Path(sfumato.__file__).parent
LAB = PACKAGE.parent / "sfumato_lab"
SOURCES = sorted([*PACKAGE.rglob("*.py"), *LAB.rglob("*.py")])
RANDOMNESS = PACKAGE / "randomness.py"

GENERATORS = re.compile(
    r"(^|\.)(default_rng|RandomState|manual_seed|seed_all|SystemRandom|AESCounter|ChaCha|PCG64|PCG64DXSM|Philox"
    r"|SFC64|MT19937)$"
    r"|(^|\.)(np|numpy)\.random\.\w+$"
    r"|(^|\.)torch\.(Generator|seed)$"
    r"|^Generator$"
)
RANDOM_MODULES = {"random", "randomgen", "numpy.random"}
CODE_RUNNING_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FILE_WRITES = re.compile(
    r"(^|\.)(write_text|write_bytes|savefig|mkstemp|NamedTemporaryFile)$|^os\.(replace|rename)$"
)
WRITERS = {  # where files may be written, and why
    "sfumato/storage.py": "the one writer",
    "sfumato/datasets/archive.py": "downloads into a temporary folder, checked before they are kept",
}
CODE_RUNNING_CALLS = re.compile(r"^torch\.(load|save)$|(^|\.)(read_pickle|to_pickle)$")


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def generators_made(source: str) -> list[str]:
    tree = ast.parse(source)
    made = [dotted(call.func) for call in calls(tree) if GENERATORS.search(dotted(call.func))]
    return made + [name for name in imported(tree) if name in RANDOM_MODULES]


def code_run_from_files(source: str) -> list[str]:
    tree = ast.parse(source)
    found = [name for name in imported(tree) if name.split(".")[0] in CODE_RUNNING_MODULES]
    for call in calls(tree):
        allows = any(
            keyword.arg == "allow_pickle"
            and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
            for keyword in call.keywords
        )
        if allows or CODE_RUNNING_CALLS.search(dotted(call.func)):
            found.append(ast.unparse(call))
    return found


def files_written(source: str) -> list[str]:
    """Calls that put something into a file, other than through `sfumato.storage`."""
    return [ast.unparse(call) for call in calls(ast.parse(source)) if _writes(call)]


def _writes(call: ast.Call) -> bool:
    if FILE_WRITES.search(dotted(call.func)):
        return True
    words = (*call.args, *(keyword.value for keyword in call.keywords))
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    opens = re.search(r"(^|\.)open$", dotted(call.func)) is not None
    return opens and any(re.fullmatch("[wax]b?[+]?", mode) for mode in modes)


def unfinished(source: str) -> list[str]:
    return re.findall(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b", source)


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def test_there_are_sources() -> None:
    assert RANDOMNESS in SOURCES


@pytest.mark.keeps_out("A predictable generator, a default seed, the same noise twice")
@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_randomness_makes_generators(path: Path) -> None:
    made = generators_made(path.read_text(encoding="utf-8"))
    if path == RANDOMNESS:
        assert made  # the guard sees those that are allowed
    else:
        assert made == [], "take a Sampler, or sfumato.randomness.public_generator(seed)"


@pytest.mark.keeps_out("A checkpoint that runs code")
@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_file_that_is_read_can_run_code(path: Path) -> None:
    assert code_run_from_files(path.read_text(encoding="utf-8")) == [], "use safetensors, JSON or plain arrays"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_nothing_is_left_unfinished(path: Path) -> None:
    assert unfinished(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.random.default_rng(0)",
        "from numpy.random import default_rng\ndefault_rng()",
        "np.random.Generator(bits)",
        "np.random.normal()",
        "numpy.random.seed(1)",
        "np.random.RandomState(3)",
        "torch.Generator()",
        "torch.manual_seed(0)",
        "torch.cuda.manual_seed(0)",
        "import random",
        "from random import Random",
        "from randomgen import AESCounter",
    ],
)
def test_the_guard_sees_generators(source: str) -> None:
    assert generators_made(source)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import dump",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "pandas.read_pickle(path)",
    ],
)
def test_the_guard_sees_code_in_files(source: str) -> None:
    assert code_run_from_files(source)


@pytest.mark.parametrize(
    "source",
    [
        "np.load(path, allow_pickle=False)",
        "def draw(generator: np.random.Generator) -> None: generator.random(3)",
        "safetensors.torch.load(content)",
        "sampler.normal(3)\ntorch.randn(3, generator=generator)",
        "from sfumato import randomness\nrandomness.public_torch_generator(1)",
    ],
)
def test_the_guard_lets_the_rest_pass(source: str) -> None:
    assert generators_made(source) == code_run_from_files(source) == unfinished(source) == []


def test_the_guard_sees_what_is_unfinished() -> None:
    assert unfinished("x = 1  # TO" + "DO: more") == ["TO" + "DO"]


@pytest.mark.keeps_out("Several writers of files, one of them not atomic or not synced")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_one_module_writes_files(path: Path) -> None:
    if str(path.relative_to(PACKAGE.parent)) not in WRITERS:
        assert files_written(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "path.write_text('x')",
        "open(path, 'w')",
        "path.open(mode='xb')",
        "figure.savefig(path, dpi=9)",
        "os.replace(a, b)",
        "tempfile.mkstemp()",
        "Path(p).joinpath(q).write_bytes(b'x')",
    ],
)
def test_the_guard_knows_a_writer(source: str) -> None:
    assert files_written(source)


@pytest.mark.parametrize("source", ["path.open('rb')", "open(path)", "np.save(buffer, x)", "write_whole(p, b)"])
def test_the_guard_lets_readers_through(source: str) -> None:
    assert files_written(source) == []


MOST_LINES = 60


def long_functions(source: str) -> list[str]:
    """Functions with too many lines below their signature and docstring."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if body and (body[-1].end_lineno or 0) - body[0].lineno + 1 > MOST_LINES:
                found.append(node.name)
    return found


def test_no_function_is_too_long_to_read():
    found = {str(path): long_functions(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_guard_finds_a_long_function():
    lines = "\n".join("    a = 1" for _ in range(MOST_LINES))
    assert long_functions(f"def short():\n{lines}\n") == []
    assert long_functions(f"def long():\n{lines}\n    a = 2\n") == ["long"]


SERVICES = {  # modules, beside packages, whose names without an underscore are public
    "array_files", "caveats", "errors", "fitting", "interruption", "plugins", "randomness", "released", "show",
    "storage",
}  # fmt: skip


def is_public(module: str, name: str) -> bool:
    """Whether a package exports the name, or it is one without an underscore of a service module."""
    home = importlib.import_module(module)
    if module == "sfumato" or module.removeprefix("sfumato.") in SERVICES:
        return not name.startswith("_")
    return hasattr(home, "__path__") and name in getattr(home, "__all__", ())


def reached_into(path: Path) -> list[str]:
    """Names of sfumato that a file of the lab imports although no package exports them."""
    return [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sfumato"
        for alias in node.names
        if not is_public(node.module, alias.name)
    ]


REACHED_INTO = {  # a list that only shrinks: these want a public name
    "sfumato._validate",
    "sfumato.audit.runs.canaries.plan_bound",
    "sfumato.audit.runs.mechanism",
    "sfumato.audit.runs.one_run.in_doubles",
    "sfumato.audit.runs.one_run.with_weights",
    "sfumato.datasets.images.scale",
    "sfumato.learn.classifier.learner",
    "sfumato.learn.features",
    "sfumato.learn.features.declared",
    "sfumato.learn.features.fitted",
    "sfumato.learn.kept_fit.Fit",
    "sfumato.learn.kept_fit.kept_fit",
    "sfumato.marginals.engine_marginals",
    "sfumato.learn.plain",
    "sfumato.learn.statistic.StatisticPlan",
    "sfumato.ledger.statement",
    "sfumato.local.estimates.second_moment",
    "sfumato.local.views.DIMENSIONS",
    "sfumato.local.views.prior_outputs",
    "sfumato.pate.votes.Integers",
}


def test_the_lab_uses_public_names_only_but_for_those_that_are_listed() -> None:
    found = {name for path in LAB.rglob("*.py") for name in reached_into(path)}
    assert found - REACHED_INTO == set()
