"""The house rules that a machine can check."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mappa_core import hookspecs

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("mappa_core", "mappa", "plugins") for path in (ROOT / folder).rglob("*.py"))
CODE = [path for path in SOURCES if "tests" not in path.parts]
HEAVY = {
    "torch", "transformers", "sympy", "math_verify", "datasets", "pyarrow", "scipy",
    "openai", "anthropic", "google.genai", "aiohttp", "mcp", "starlette", "uvicorn",
}  # fmt: skip

MAX_CORE_LINES = 20_000
CONTRACT = ("errors.py", "records.py", "experience.py", "protocols/*.py", "hookspecs.py", "plugins.py")
MAX_CONTRACT_LINES = 1_800
MAX_FRONT_NAMES = 60
FAMILIES = ("commands", "data", "engine", "sandbox", "statistics", "transport", "workflow")
"""Modules of core that export beside its front what authors of one kind need, and hold nothing of their own."""
SAFETY = ("redaction", "safe_json", "safe_walk")
PUBLIC = {"mappa_core", *(f"mappa_core.{name}" for name in (*FAMILIES, *SAFETY, "runs", "testing"))}
"""What parts and plugins may import of core."""
FRONTS = [ROOT / "mappa_core/__init__.pyi", *sorted(ROOT.glob("plugins/*/mappa_*/__init__.pyi"))]
PROJECTS = {
    file.parent.name: tomllib.loads(file.read_text())["project"] for file in ROOT.glob("plugins/*/pyproject.toml")
}


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 400, "move part of it to a room of its own"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= 60, f"{node.name} has {length} lines"


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
            names = [node.module or "", *(name for name in inner if importlib_finds(name))]
        else:
            continue
        yield from ((name, f"{path.relative_to(ROOT)}:{node.lineno}: {name}") for name in names)


def importlib_finds(name: str) -> bool:
    """Whether a name of core is a module of it."""
    path = ROOT.joinpath(*name.split("."))
    return name.startswith("mappa_core.") and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


@pytest.mark.parametrize("folder", PROJECTS)
def test_parts_and_plugins_use_what_is_public(folder):
    """Of core its front and families; of parts the front, where the package requires them."""
    extras = PROJECTS[folder].get("optional-dependencies", {}).values()
    needed = [*PROJECTS[folder]["dependencies"], *(one for extra in extras for one in extra)]
    required = {re.split(r"[^a-z-]", one)[0].replace("-", "_") for one in needed}
    wrong = []
    for path in (path for path in CODE if folder in path.parts):
        for name, where in imported_modules(path):
            package = name.partition(".")[0]
            if package == "mappa_core":
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
    "name", ["mappa_core", *sorted(name for name in PUBLIC if "." in name and "safe_" not in name)]
)
def test_every_public_name_is_documented(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/site")
    from docstrings import exported_names, said_of

    module = importlib.import_module(name)
    assert [exported for exported in exported_names(module) if not said_of(module, exported)] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_exports_and_holds_nothing(name):
    family: ModuleType = importlib.import_module(f"mappa_core.{name}")
    tree = ast.parse(inspect.getsource(family))
    _, *imports = tree.body
    assert ast.get_docstring(tree) and imports
    assert all(isinstance(node, ast.ImportFrom) and node.module.startswith("mappa_core.") for node in imports)
    names = [alias.name for node in imports for alias in node.names]
    assert names == [alias.asname for node in imports for alias in node.names], "import NAME as NAME"


def test_core_stays_small():
    def lines(paths: Iterator[Path]) -> int:
        return sum(path.read_text().count("\n") for path in paths)

    assert lines((ROOT / "mappa_core").rglob("*.py")) <= MAX_CORE_LINES
    contract = (path for pattern in CONTRACT for path in (ROOT / "mappa_core").glob(pattern))
    assert lines(contract) <= MAX_CONTRACT_LINES


def test_every_hook_is_documented_and_named_by_its_kind():
    hooks = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("mappa_")}
    assert len(hooks) == 14
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
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]:
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
