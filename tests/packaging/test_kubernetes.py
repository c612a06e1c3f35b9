"""The job for Kubernetes against its image and the recipe that it trains; no cluster is there to ask."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from mappa.session.config_problems import find_problems
from mappa.sessions import compose
from mappa.testing import load_plugins

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "deploy" / "kubernetes" / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    (job,) = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rayjob.yaml").read_text())
    spec: dict[str, Any] = job["spec"]
    return spec


def test_pods_read_their_volumes_as_the_user_of_their_image(job):
    """Secrets and claims belong to root, and to the group that a pod names."""
    (user,) = re.findall(r"useradd .*--uid (\d+)", IMAGE)
    cluster = job["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert str(pod["securityContext"]["fsGroup"]) == user
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert all(secret["defaultMode"] & 0o440 == 0o440 for secret in secrets)


def test_the_run_lacks_nothing_but_what_is_made_before(job, monkeypatch):
    """With the parts that the image has, and the key by the name that the coach reads."""
    folders = re.findall(r"\./(mappa_\w+)", IMAGE)
    tables = [tomllib.loads((ROOT / "plugins" / one / "pyproject.toml").read_text())["project"] for one in folders]
    registry = load_plugins(only=tuple(name for one in tables for name in one.get("entry-points", {}).get("mappa", ())))
    (*_, script) = shlex.split(job["entrypoint"])
    key, _, *words = shlex.split(script)
    assert words[:6] == ["mappa", "train", "--plugin", "mathchat", "--recipe", "paper"]
    composed = compose(registry, recipe="mathchat/paper", overrides=words[6:])
    monkeypatch.setenv(key.partition("=")[0], "a-key")
    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", lambda model: 1 / 0)
    (tasks, *others) = find_problems(composed, registry)
    assert tasks == "tasks: /runs/data/train.jsonl: there is no such file"
    assert composed.config.tasks.options.eval_path.startswith("/runs/data/")
    assert all("Qwen3-4B" in one or "libraries are missing" in one for one in others), others
    assert composed.config.tools["python"].use == "python", "no server of programs is beside the driver"
