"""The house rules that a machine can check."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mappa_core import hookspecs

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("mappa_core", "plugins") for path in (ROOT / folder).rglob("*.py"))
CODE = [path for path in SOURCES if "tests" not in path.parts]
HEAVY = {
    "torch", "transformers", "sympy", "math_verify", "datasets", "pyarrow", "scipy",
    "openai", "anthropic", "google.genai", "aiohttp", "mcp", "starlette", "uvicorn",
}  # fmt: skip


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


def test_plugins_use_the_front_door():
    deep = re.compile(r"^\s*(from|import) mappa_core\.(?!testing\b)", re.MULTILINE)
    plugins = [path for path in CODE if "plugins" in path.parts and "mappa_core" not in path.parts]
    assert [str(path) for path in plugins if deep.search(path.read_text())] == []


def test_every_hook_is_documented_and_named_by_its_kind():
    hooks = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("mappa_")}
    assert len(hooks) == 13
    assert all(inspect.getdoc(hook) for hook in hooks.values())


@pytest.mark.parametrize("arguments", [["--help"], ["plugins"], ["config", "--plugin", "mathchat"]])
def test_the_core_is_light(arguments):
    program = (
        "import sys\nfrom mappa_core.cli import main\n"
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


def test_a_missing_value_is_never_made_a_number():
    lookup = re.compile(r"\.get\([^()]*,\s*-?\d")
    assert [str(path) for path in CODE if lookup.search(path.read_text())] == []
