"""The script for Slurm, with stand-ins for Slurm's commands, for Ray and for the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"
COMMANDS = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "srun": 'echo "srun $*" >>"$LOG"; while case $1 in --*) ;; *) false ;; esac; do shift; done; exec "$@"',
    "ray": '[ "$1" = status ] || { echo "ray $*" >>"$LOG"; exec sleep 60; }',
    "mappa": 'echo "mappa $*" >>"$LOG"; [ -z "$LASTS" ] || { trap "echo warned >>$LOG; trap=1" TERM; '
    'until [ -n "$trap" ]; do sleep 0.1; done; sleep 1; echo recorded >>"$LOG"; exit 143; }',
}
RAY = """
import os
from types import SimpleNamespace

util = SimpleNamespace(get_node_ip_address=lambda: "10.1.2.3")


def init(address, **_):
    pass


def nodes():
    with open(os.environ["LOG"], "a") as log:
        log.write("nodes\\n")
    return [{"Alive": True}] * open(os.environ["LOG"]).read().count("nodes\\n")
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in COMMANDS.items():
        (commands / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (commands / name).chmod(0o755)
    (commands / "python").symlink_to(sys.executable)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "ray.py").write_text(RAY)
    (tmp_path / "work").mkdir()

    def start(*arguments: str, lasts: bool = False) -> subprocess.Popen[str]:
        variables = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(tmp_path / "modules"),
            "LOG": str(tmp_path / "log"),
            "LASTS": "yes" if lasts else "",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_CPUS_PER_TASK": "16",
            "SLURM_GPUS_ON_NODE": "8",
        }
        return subprocess.Popen(["bash", SCRIPT, *arguments], env=variables, cwd=tmp_path / "work", text=True)

    return start


def test_the_run_begins_when_every_node_has_joined_with_all_its_processors(job, tmp_path):
    assert job("--plugin", "mathchat").wait() == 0
    log = (tmp_path / "log").read_text().splitlines()
    starts = [line for line in log if line.startswith("srun") and "ray start" in line]
    assert [line.split("--nodelist=")[1].split()[0] for line in starts] == ["node1", "node2"]
    assert all("--cpus-per-task=16" in line and "--num-cpus=16 --num-gpus=8" in line for line in starts)
    assert "--node-ip-address=10.1.2.3" in starts[0] and "--address=10.1.2.3:6379" in starts[1]
    run = "mappa train engine.use=cluster engine.options.address=10.1.2.3:6379 --plugin mathchat"
    assert log[-1] == run and log.count("nodes") == 2
    assert not list((tmp_path / "work").iterdir()), "the token is gone"


def test_slurms_warning_is_waited_for_until_the_run_has_recorded_all(job, tmp_path):
    script = job("--plugin", "mathchat", lasts=True)
    while not (tmp_path / "log").exists() or "mappa" not in (tmp_path / "log").read_text():
        assert script.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)  # until the stand-in listens
    script.send_signal(signal.SIGTERM)
    assert script.wait() == 143
    log = (tmp_path / "log").read_text().splitlines()
    assert log[-2:] == ["warned", "recorded"] and log.count("warned") == 1
