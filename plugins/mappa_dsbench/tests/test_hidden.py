"""The tables that embedded tasks are cut from cannot be read by programs, and no other copy of them lies about."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core import ConfigError, ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_dsbench.embedded.sources import HIDDEN_PATHS, SOURCES
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

LIMITS = ToolLimits(wall_s=240.0, cpu_s=120.0, memory_bytes=2 << 30)
MASKED = {place.removesuffix("?") for place in HIDDEN_PATHS}
SUFFIXES = {
    ".csv", ".arff", ".json", ".parquet", ".gz", ".txt", ".rda", ".pkl", ".npz", ".npy", ".tsv", ".data", ".feather",
    ".zip", ".xz", ".bz2", ".arrow", ".xlsx", ".dta", ".mat", ".h5", ".db", ".sqlite",
}  # fmt: skip

THIEF = """
import importlib, importlib.resources, json, os, pkgutil, sys
sources = json.loads(sys.argv[1])
found = {}

def attempt(name, way, read):
    try:
        size = len(read())
    except BaseException as error:
        found.setdefault(name, {})[way] = type(error).__name__
    else:
        found.setdefault(name, {})[way] = size

def by_function(name):
    kind, call = CALLS[name]
    module = importlib.import_module(kind)
    return call(module)

SKLEARN = {"breast": "load_breast_cancer", "wine": "load_wine", "iris": "load_iris", "digits": "load_digits",
           "diabetes": "load_diabetes"}
VEGA = {"seattle_temps": "seattle_temps", "sf_temps": "sf_temps", "weather": "seattle_weather"}
CALLS = {}
for name, files in sources.items():
    package = files[0].split("/")[0]
    if package == "sklearn":
        CALLS[name] = "sklearn.datasets", lambda module, name=name: getattr(module, SKLEARN[name])().data
    elif package == "statsmodels":
        CALLS[name] = f"statsmodels.datasets.{name}", lambda module: module.load_pandas().data
    elif package == "vega_datasets":
        CALLS[name] = package, lambda module, name=name: getattr(module.local_data, VEGA.get(name, name))()
    elif package == "palmerpenguins":
        CALLS[name] = package, lambda module: module.load_penguins()
    else:
        CALLS[name] = "plotnine.data", lambda module, name=name: getattr(module, name)

for name, files in sources.items():
    attempt(name, "function", lambda: by_function(name))
    for file in files:
        package, _, rest = file.partition("/")
        for folder in sys.path:
            if os.path.isdir(os.path.join(folder, "sklearn")):
                attempt(name, "open " + file, lambda: open(os.path.join(folder, file), "rb").read())
                attempt(name, "link " + file, lambda: (
                    os.path.lexists("link") and os.unlink("link"), os.symlink(os.path.join(folder, file), "link"),
                    open("link", "rb").read())[-1])
        attempt(name, "resource " + file, lambda: importlib.resources.files(package).joinpath(rest).read_bytes())
        attempt(name, "pkgutil " + file, lambda: pkgutil.get_data(package, rest))
print(json.dumps(found))
"""
Steal = Callable[..., Awaitable[dict[str, dict[str, str | int]]]]


@pytest.fixture
async def steal(tmp_path: Path) -> AsyncIterator[Steal]:
    """Run the thief in a cage; what it got of each data set, by way: a length, or the type of an error."""
    tools: list[PythonTool] = []

    async def steal(tier: str, hide: tuple[str, ...]) -> dict[str, dict[str, str | int]]:
        tool = PythonTool(PythonOptions(sandbox=tier, hidden_paths=list(hide), workers=1))
        tools.append(tool)
        try:
            await tool.open()
        except ConfigError as error:
            required = os.environ.get("MAPPA_REQUIRE_TIERS", "bubblewrap" if os.environ.get("CI") else "")
            if sys.platform != "linux" or tier not in required.split(","):
                pytest.skip(f"the tier {tier} does not work here: {error}")
            raise
        workspace = FolderWorkspace(tmp_path / "work", tmp_path / "archive")
        sources = {name: source.files for name, source in SOURCES.items()}
        result = await tool.run(THIEF, [json.dumps(sources)], workspace, LIMITS)
        assert result.status == "ok", result.stderr
        return json.loads(result.stdout)

    yield steal
    for tool in tools:
        await tool.close()


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
async def test_no_program_can_read_a_data_set(steal: Steal, tier: str) -> None:
    found = await steal(tier, HIDDEN_PATHS)
    assert set(found) == set(SOURCES)
    assert {name: got for name, ways in found.items() for got in ways.values() if not isinstance(got, str)} == {}


async def test_program_reads_all_tables_if_none_is_hidden(steal: Steal) -> None:
    found = await steal("auto", ())
    for name, ways in found.items():
        read = {way.split()[0] for way, got in ways.items() if isinstance(got, int)}
        assert read == {"function", "open", "link", "resource", "pkgutil"}, (name, ways)


def test_no_copy_of_a_table_lies_elsewhere_in_the_packages() -> None:
    """By name: a file with the name of a data set, in a form that holds tables."""
    names = set(SOURCES) | {Path(file).name.split(".")[0] for source in SOURCES.values() for file in source.files}
    wanted = {re.sub(r"\W", "_", name.lower()) for name in names} | {"breast_cancer", "auto_mpg"}
    folder = Path(next(path for path in sys.path if (Path(path) / "sklearn").is_dir()))
    found = []
    for above, folders, files in os.walk(folder):
        within = Path(above).relative_to(folder).as_posix()
        folders[:] = [name for name in folders if f"{within}/{name}".removeprefix("./") not in MASKED]
        for file in files:
            stem, *suffixes = file.lower().split(".")
            if re.sub(r"\W", "_", stem) in wanted and SUFFIXES & {f".{suffix}" for suffix in suffixes}:
                found.append(f"{within}/{file}")
    assert found == []


def test_recipe_hides_exactly_the_answer_tables() -> None:
    config = compose(load_plugins(only=("look", "dsbench", "engine", "sandbox")), "dsbench", "tiny").config
    assert config.tools["python"].options.hidden_paths == list(HIDDEN_PATHS)
