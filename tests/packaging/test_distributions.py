"""What the metadata of every distribution promise. Wheels themselves are built and looked into by `make dist`."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT, ROOT / "mappa", *sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))]
HEAVY = {"torch", "transformers", "peft", "safetensors", "deepspeed", "ray", "vllm"}
"""Taken at the one version that is pinned."""


def pins(name: str) -> dict[str, str]:
    """Version by package, as a file of constraints has them."""
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {canonicalize_name(package): version for package, version in pairs}


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def package_of(folder: Path) -> Path:
    """The package of a project: in its folder, or, of the application, the folder itself."""
    package = folder / project(folder)["name"].replace("-", "_")
    return package if package.is_dir() else folder


def requirements(folder: Path, *extras: str) -> list[Requirement]:
    """What a distribution needs with these extras."""
    table = project(folder)
    parts = [table["dependencies"], *(table["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(one) for part in parts for one in part]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_distribution_says_what_packagers_ask(folder):
    table = project(folder)
    assert table["license"] == "MIT" and table["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (package_of(folder) / "py.typed").exists()
    assert (folder / table["readme"]).read_text().startswith("# ")
    core = project(ROOT)
    assert all(table[key] == core[key] for key in ("requires-python", "authors", "classifiers", "license"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_is_pinned_is_within_the_ranges(folder):
    """The versions of constraints.txt, with which everything is tested, are allowed to users."""
    pinned = pins("constraints.txt")
    needed = {one.name: one for one in requirements(folder, *project(folder).get("optional-dependencies", ()))}
    within = {name: one.specifier.contains(pinned[canonicalize_name(name)]) for name, one in needed.items()
              if canonicalize_name(name) in pinned}  # fmt: skip
    assert all(within.values()), within


BROUGHT = {
    "anyio": "mcp", "httpx2": "mcp", "mcp_types": "mcp", "markupsafe": "jinja2", "joblib": "scikit-learn",
    "tokenizers": "transformers", "huggingface_hub": "transformers",
}  # fmt: skip
"""Packages by the one that brings and documents them."""
OF_THE_CALLER = {("mappa_core", "aiohttp"), ("mappa_core", "httpx2")}
"""Clients that a transport hands to core, which imports nothing of them before."""


@pytest.fixture(scope="module")
def distributions() -> Mapping[str, list[str]]:
    """Distributions by the packages that they bring, from the metadata of everything installed."""
    return packages_distributions()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_distribution_requires_what_it_imports(folder, distributions):
    """Directly or as an extra; what runs in programs of agents is theirs, and what builds has a build system."""
    table = project(folder)
    own = package_of(folder).name
    extras = tuple(table.get("optional-dependencies", ()))
    needed = requirements(folder, *extras)
    fronts = {"mappa-core": ROOT, "mappa": ROOT / "mappa"}
    needed += [
        inner
        for requirement in needed
        if requirement.name in fronts and requirement.extras
        for inner in requirements(fronts[requirement.name], *requirement.extras)
    ]
    required = {canonicalize_name(one.name) for one in needed}
    missing = {}
    for path in package_of(folder).rglob("*.py"):
        if {"templates", "remote", "hatch_build.py"} & set(path.relative_to(folder).parts):
            continue
        for package in imported(path) - set(sys.stdlib_module_names) - {own}:
            bringing = {
                canonicalize_name(one) for one in (BROUGHT.get(package, package), *distributions.get(package, ()))
            }
            if not bringing & required and (own, package) not in OF_THE_CALLER:
                missing.setdefault(package, str(path.relative_to(folder)))
    assert missing == {}


def imported(path: Path) -> set[str]:
    """Names of the packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_the_lowest_versions_that_are_tested_are_those_that_are_promised():
    lowest = pins("constraints-lowest.txt")
    needed = [*requirements(ROOT), *requirements(ROOT / "mappa", "test")]
    promised = {
        canonicalize_name(requirement.name): requirement.specifier
        for requirement in needed
        if not requirement.name.startswith("mappa-")
    }
    assert not HEAVY & set(promised)
    for name, specifier in promised.items():
        (bound,) = [one.version for one in specifier if one.operator == ">="]
        assert SpecifierSet(f"=={bound}").contains(lowest[name]), f"{name}: promised {bound}, tested {lowest[name]}"
