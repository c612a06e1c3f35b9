"""The house rules that a machine can check."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from mappa_core import hookspecs

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("mappa_core", "mappa", "plugins") for path in (ROOT / folder).rglob("*.py"))
CODE = [path for path in SOURCES if "tests" not in path.relative_to(ROOT).parts]
HEAVY = {
    "torch", "transformers", "sympy", "math_verify", "datasets", "pyarrow", "scipy",
    "openai", "anthropic", "google.genai", "aiohttp", "mcp", "starlette", "uvicorn",
}  # fmt: skip

CONTRACT = ("errors.py", "records.py", "experience.py", "protocols/*.py", "hookspecs.py", "plugins.py")
MAX_CONTRACT_LINES = 1_800
MAX_FRONT_NAMES = 60
CORE_FAMILIES = ("coach", "data", "engine", "sandbox", "transport", "workflow")
FAMILIES = (
    *(f"mappa_core.{name}" for name in CORE_FAMILIES),
    "mappa.commands",
    "mappa.judging",
    "mappa.sessions",
    "mappa.statistics",
)
"""Modules that export beside a front what authors of one kind need, and hold nothing of their own."""
TOOLS = ("codec", "files", "redaction", "safe_arithmetic", "safe_json", "safe_sqlite", "safe_walk")
"""Modules of core that are public as they are: how records, files and data of strangers are read and written."""
PUBLIC = {
    "mappa_core", "mappa", *FAMILIES, *(f"mappa_core.{name}" for name in TOOLS), "mappa.runs", "mappa.testing",
}  # fmt: skip
"""What plugins may import of core and of the application."""
FRONTS = [ROOT / f"{name}/__init__.pyi" for name in ("mappa_core", "mappa")]
FRONTS += sorted(ROOT.glob("plugins/*/mappa_*/__init__.pyi"))
PROJECTS = {
    file.parent.name: tomllib.loads(file.read_text())["project"] for file in ROOT.glob("plugins/*/pyproject.toml")
}


def test_every_module_says_what_it_is_for():
    trees = {path: ast.parse(path.read_text()) for path in CODE}
    assert [path for path, tree in trees.items() if tree.body and ast.get_docstring(tree) is None] == []


def imported_modules(path: Path) -> Iterator[tuple[str, str]]:
    """Every module that a file imports, with where; of relative imports none."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            # `from mappa_core import engine` takes a module, too.
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [node.module or "", *(name for name in inner if is_module(name))]
        else:
            continue
        yield from ((name, f"{path.relative_to(ROOT)}:{node.lineno}: {name}") for name in names)


def is_module(name: str) -> bool:
    """Whether a name of core or of the application is a module of it."""
    path = ROOT.joinpath(*name.split("."))
    return name.startswith(("mappa_core.", "mappa.")) and (path.with_suffix(".py").exists() or path.is_dir())


@pytest.mark.parametrize("folder", PROJECTS)
def test_plugins_use_what_is_public(folder):
    """Fronts and families of core and application; the front of another plugin, where the package requires it."""
    extras = PROJECTS[folder].get("optional-dependencies", {}).values()
    needed = [*PROJECTS[folder]["dependencies"], *(one for extra in extras for one in extra)]
    required = {re.split(r"[^a-z-]", one)[0].replace("-", "_") for one in needed}
    wrong = []
    for path in (path for path in CODE if folder in path.parts):
        for name, where in imported_modules(path):
            package = name.partition(".")[0]
            if package in ("mappa_core", "mappa"):
                wrong += [where] * (name not in PUBLIC)
            elif package in PROJECTS and package != folder:
                wrong += [where] * (name != package or package not in required)
    assert wrong == []


def stub_names(stub: Path) -> list[tuple[str, str]]:
    """The names of a front with the modules that they come from, in the order of its file."""
    tree = ast.parse(stub.read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names), "import NAME as NAME"
    return [(f"{'.' * node.level}{node.module}", alias.name) for node in imports for alias in node.names]


@pytest.mark.parametrize("stub", FRONTS, ids=lambda stub: stub.parent.name)
def test_a_front_is_listed_once(stub):
    """The stub is the one list: the module reads it, and knows no other names."""
    names = [name for _, name in stub_names(stub)]
    package = importlib.import_module(stub.parent.name)
    assert len(set(names)) == len(names)
    assert sorted(package.__all__) == sorted(names)
    assert not re.search(rf"\b({'|'.join(names)})\b", code_without_docstring(stub.with_suffix(".py")))


def code_without_docstring(path: Path) -> str:
    tree = ast.parse(path.read_text())
    return ast.unparse(ast.Module(tree.body[1:], []))


def test_the_front_is_small():
    assert len(stub_names(FRONTS[0])) <= MAX_FRONT_NAMES


@pytest.mark.parametrize(
    "name", ["mappa_core", "mappa", *sorted(name for name in PUBLIC if "." in name and "safe_" not in name)]
)
def test_every_public_name_is_documented(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/site")
    from docstrings import exported_names, said_of

    module = importlib.import_module(name)
    assert [exported for exported in exported_names(module) if not said_of(module, exported)] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_exports_and_holds_nothing(name):
    family: ModuleType = importlib.import_module(name)
    tree = ast.parse(inspect.getsource(family))
    _, *imports = tree.body
    assert ast.get_docstring(tree) and imports
    assert all(isinstance(node, ast.ImportFrom) for node in imports)
    assert all(node.module.partition(".")[0] in ("mappa_core", "mappa") for node in imports)
    names = [alias.name for node in imports for alias in node.names]
    assert names == [alias.asname for node in imports for alias in node.names], "import NAME as NAME"


def distribution_of(path: Path) -> str:
    """The distribution that a file of product code belongs to."""
    folder, *inner = path.relative_to(ROOT).parts
    return inner[0] if folder == "plugins" else folder


def exported_names() -> Iterator[tuple[str, str, str]]:
    """Every name of a front or family: the exporting module, the defining module and the name."""
    for module in ("mappa_core", "mappa", *FAMILIES, "mappa.runs"):
        path = ROOT.joinpath(*module.split("."))
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        stub = path / "__init__.pyi"
        for node in ast.walk(ast.parse((stub if stub.exists() else file).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or node.module.startswith("mappa")):
                origin = f"{module}.{node.module}" if node.level else node.module
                yield from ((module, origin, alias.name) for alias in node.names if alias.asname == alias.name)


def imported_names(path: Path) -> set[str]:
    """Names that a file takes from modules of this project."""
    nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
    ours = (node for node in nodes if not node.level and (node.module or "").startswith("mappa"))
    return {alias.name for node in ours for alias in node.names}


def user_texts() -> str:
    """What users write: templates of `mappa new`, samples of pages, notebooks, studies, packages of third parties."""
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md"), ROOT / "README.md"]
    written = [page.read_text() for page in pages if "reference" not in page.parts]
    samples = [sample for page in written for sample in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    patterns = (
        "mappa/cli/new/templates/**/*.jinja",
        "docs/notebooks/*.ipynb",
        "docs/evidence/*.py",
        "bench/*.py",
        "tests/third_party/**/*.py",
    )
    return "\n".join([*samples, *(file.read_text() for pattern in patterns for file in ROOT.glob(pattern))])


ONE_USER: Mapping[str, str] = {
    "mappa_core.transport.ask_reconnecting": "mappa-batch, whose restarts are those of every transport",
    "mappa.statistics.difference_bounds": "the race of mappa-gepa; it is made of the parts of the other intervals",
}
"""Exported names with one user, and why they stay where they are."""


def test_an_exported_name_is_used_by_two_distributions_or_by_users():
    """What one distribution alone uses belongs to it, and what nobody uses is not exported."""
    exporting = {file.with_suffix(".py") for file in FRONTS} | {ROOT / "mappa/runs/__init__.py"}
    exporting |= {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in FAMILIES}
    importers: dict[str, set[str]] = defaultdict(set)
    words: dict[str, Counter[str]] = defaultdict(Counter)
    for path in (path for path in CODE if path not in exporting):
        distribution = distribution_of(path)
        words[distribution].update(re.findall(r"\w+", path.read_text()))
        for name in imported_names(path):
            importers[name].add(distribution)
    by_users = set(re.findall(r"\w+", user_texts()))
    lonely = set()
    for module, origin, name in exported_names():
        owner = origin.partition(".")[0]
        others = importers[name] - {owner}
        owner_uses_it = words[owner][name] > 1
        if name not in by_users and not (others and len(others) + owner_uses_it > 1):
            lonely.add(f"{module}.{name}")
    assert lonely == ONE_USER.keys()


def test_the_contract_stays_small():
    """What authors of plugins have to know: it grows only by what all of them need."""
    files = (path for pattern in CONTRACT for path in (ROOT / "mappa_core").glob(pattern))
    assert sum(path.read_text().count("\n") for path in files) <= MAX_CONTRACT_LINES


def test_every_hook_is_documented_and_named_by_its_kind():
    hooks = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("mappa_")}
    assert len(hooks) == 13
    assert all(inspect.getdoc(hook) for hook in hooks.values())


@pytest.mark.parametrize("arguments", [["--help"], ["plugins"], ["config", "--plugin", "mathchat"]])
def test_the_core_is_light(arguments):
    program = (
        "import sys\nfrom mappa.cli import main\n"
        f"code = main({arguments!r})\n"
        f"heavy = {HEAVY!r} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_relative_links_in_documents_lead_somewhere():
    pages = (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "mappa/README.md",
        *ROOT.glob("plugins/*/README.md"),
    )
    for document in pages:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"


def test_the_table_of_changes_leads_to_files_that_are_there():
    """CONTRIBUTING.md's "I want to change ... go to ..."."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## I want to change")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 30
    for change, target in rows:
        paths = re.findall(r"`([^`]+)`", target)
        assert paths, f"{change.strip()}: no file is named"
        for path in paths:
            assert list(ROOT.glob(path)), f"{change.strip()}: there is no {path}"


def test_a_missing_value_is_never_made_a_number():
    lookup = re.compile(r"\.get\([^()]*,\s*-?\d")
    assert [str(path) for path in CODE if lookup.search(path.read_text())] == []


# --- what tests import ------------------------------------------------------------------------------------------------

TESTS = [path for folder in ("tests", "plugins") for path in sorted((ROOT / folder).rglob("*.py"))]
TESTS = [path for path in TESTS if "tests" in path.relative_to(ROOT).parts and path.name != "conftest.py"]
"""A conftest.py is where a folder of tests may reach into other rooms."""
DOORS = {
    *PUBLIC, "mappa.look.crash_test", "mappa.cli", "mappa.cli.main", "mappa.testing.play",
}  # fmt: skip
"""What a test may import anywhere: what is public, and the command line. `main` and `play` are functions that have the
names of their modules."""
VALUES = {
    "mappa_core.calls.options", "mappa_core.coaching.options", "mappa_core.codec", "mappa_core.config.schema",
    "mappa_core.records", "mappa.rollout.named_coach", "mappa.runs.rows", "mappa.store.agent_columns",
    "mappa.store.iteration_report", "mappa.store.summary",
}  # fmt: skip
"""Modules of values that rooms hand to each other: tests build them and compare with them."""
ANYWHERE: Mapping[str, str] = {
    "tests/whole": "runs of the whole application, looked at from inside",
    "tests/docs": "pages are held against what they describe",
    "tests/evidence": "studies of docs/evidence are held against the rooms that they measure",
    "tests/third_party": "packages of strangers, whose tests are run as theirs",
    "tests/test_house.py": "the rules of all rooms",
}
REACHES: Mapping[tuple[str, str], str] = {
    ("tests/cli/test_front.py", "mappa_core.plugins"): "what help must not load",
    ("tests/cli/test_progress.py", "mappa.training.listener"): "progress is what a listener prints",
    ("tests/cli/test_progress.py", "mappa.training.tracker_threads"): "progress tells of trackers that fail",
    ("tests/look/cli/test_runs.py", "mappa.store.folder"): "whether a command has let go of a folder",
    ("tests/downstream/test_packages.py", "mappa.cli.new"): "every kind of package that can be written",
    ("tests/packaging/test_kubernetes.py", "mappa.session.config_problems"): "what a run of the manifest would lack",
    ("tests/cli/test_hostile_names.py", "mappa.look.dataset.card"): "names in a data set card",
    ("tests/cli/test_hostile_names.py", "mappa_core.config.agent_names"): "names that an import takes",
    ("tests/coaching/test_names.py", "mappa_core.config.agent_names"): "names that a verdict can hold",
    ("tests/plugins/test_load.py", "mappa_core.errors"): "SIGTERM",
    ("tests/rollout/test_exits.py", "mappa_core.errors"): "SIGTERM",
    ("tests/packaging/test_picture.py", "mappa.look.demo"): "the run that the picture shows",
    ("plugins/mappa_calibration/tests/test_blind.py", "mappa_core.coaching.prompt"): "what a judge is asked",
    ("plugins/mappa_calibration/tests/jury/test_jury.py", "mappa.look.cli.coach"): "the group of its command",
    ("plugins/mappa_engine/tests/cluster/test_gpu_settings.py", "mappa.session.policies"): "policies of a recipe",
    ("plugins/mappa_engine/tests/test_export.py", "mappa.store.checkpoint"): "a checkpoint to export from",
    ("plugins/mappa_engine/tests/test_malformed_calls.py", "mappa.rollout.team"): "a malformed call in a team",
    ("plugins/mappa_engine/tests/test_malformed_calls.py", "mappa_core.coaching.evidence"): "what a coach sees of it",
    ("plugins/mappa_engine/tests/test_supervised.py", "mappa_core.credit.ragged"): "experience made by hand",
    (
        "plugins/mappa_sandbox/tests/test_fork_server.py",
        "mappa_core.tools.owned_folder",
    ): "the mark of a folder's owner",
    ("plugins/mappa_sandbox/tests/test_load.py", "mappa_core.tools.owned_folder"): "the mark of a folder's owner",
    ("plugins/mappa_sandboxfusion/tests/test_client.py", "mappa.testing.wire_server"): "answers that are no answers",
}
"""Modules of another room that a test imports, and what for."""


def reaches(path: Path) -> set[tuple[str, str]]:
    """The test and each module of this project that it imports though it stands beside another room."""
    where = str(path.relative_to(ROOT))
    if where.startswith(tuple(ANYWHERE)):
        return set()
    room = path.relative_to(ROOT).parts[1]
    beside = tuple(f"{package}.{room}" for package in ("mappa_core", "mappa") if where.startswith("tests/"))
    allowed = (*beside, "mappa.look.conformance")
    modules = {name for name, _ in imported_modules(path) if name.partition(".")[0] in ("mappa_core", "mappa")}
    return {
        (where, name)
        for name in modules - DOORS - VALUES
        if not any(name == module or name.startswith(f"{module}.") for module in allowed)
    }


def test_tests_import_what_is_public_or_the_room_that_they_stand_beside():
    """A test that needs more takes it from a fixture of its folder's conftest.py, or belongs beside another room."""
    assert {reach for path in TESTS for reach in reaches(path)} == set(REACHES)
