"""What of the driver's environment actors see."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mappa_engine.cluster.actors.actor_environment import (
    local_actor_environment,
    remote_actor_environment,
    thread_variables,
)
from mappa_engine.cluster.samplers.remote_engine import HUGE_PAGES, vllm_environment

PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ALLOCATES = """
import ctypes, pathlib
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
ctypes.memset(libc.malloc(ctypes.c_size_t(64 << 20)), 1, 64 << 20)
lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("AnonHugePages:")))
"""
"""Prints the KB of its huge pages."""

DRIVER = {
    "HOME": "/home/me",
    "PATH": "/usr/bin",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "LC_ALL": "C",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "4",
    "TOKENIZERS_PARALLELISM": "true",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_USAGE_SOURCE": "test",
    "VLLM_NO_USAGE_STATS": "0",
    "OPENAI_API_KEY": "secret",
    "HF_TOKEN": "secret",
    "VLLM_API_KEY": "secret",
    "NVIDIA_API_KEY": "secret",
    "LC_SECRET": "secret",
    "TORCH_HUB_AUTH_TOKEN": "secret",
    "WANDB_API_KEY": "secret",
    "RAY_ADDRESS": "10.0.0.1:6379",
    "http_proxy": "http://me:secret@proxy",
    "ANYTHING_ELSE": "secret",
}
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
SETTINGS = {"NCCL_DEBUG", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_OFFLINE", "VLLM_USAGE_SOURCE"}


def test_local_actors_get_no_secrets():
    seen = local_actor_environment(DRIVER)
    assert seen.keys() == {"HOME", "PATH", "CUDA_VISIBLE_DEVICES", "LC_ALL"} | SETTINGS | QUIET.keys()
    assert QUIET.items() <= seen.items()
    assert seen["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert seen["OMP_NUM_THREADS"] == "4"


def test_remote_actors_get_settings_only():
    seen = remote_actor_environment(DRIVER)
    assert seen.keys() == SETTINGS | QUIET.keys()


def test_actors_have_one_thread_by_default():
    assert remote_actor_environment({}) == {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **QUIET}


def test_actors_that_compute_have_their_threads_unless_the_run_was_given_a_number(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert thread_variables(4) == {"OMP_NUM_THREADS": "4"}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert thread_variables(4) == {}


def asks_for_huge_pages() -> bool:
    """Whether processes get huge pages if they ask for them, and no others, and glibc can ask."""
    library, version = platform.libc_ver()
    asked = PAGES.is_file() and "[madvise]" in PAGES.read_text()
    return asked and library == "glibc" and tuple(map(int, version.split("."))) >= (2, 35)


def test_only_cpu_samplers_get_huge_pages():
    assert HUGE_PAGES.items() <= vllm_environment("cpu", "float32").items()
    assert not HUGE_PAGES.keys() & vllm_environment("cuda", "float32").keys()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpu_samplers_do_not_use_flashinfer(dtype):
    assert vllm_environment("cuda", dtype)["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


@pytest.mark.skipif(not asks_for_huge_pages(), reason="huge pages are given to all here, or to none")
@pytest.mark.parametrize("environment", [{}, HUGE_PAGES], ids=["plain", "huge"])
def test_malloc_uses_huge_pages(environment):
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATES], capture_output=True, text=True, check=True, env=environment
    )
    assert (int(done.stdout) >= 32 << 10) == bool(environment)
