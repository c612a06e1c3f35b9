"""What of the driver's environment actors see."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mappa_engine.cluster.actors.actor_environment import local_actor_environment, remote_actor_environment

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


def test_actors_here_see_the_machine_and_settings_and_no_secret():
    seen = local_actor_environment(DRIVER)
    assert seen.keys() == {"HOME", "PATH", "CUDA_VISIBLE_DEVICES", "LC_ALL"} | SETTINGS | QUIET.keys()
    assert QUIET.items() <= seen.items()
    assert seen["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert seen["OMP_NUM_THREADS"] == "4"


def test_actors_elsewhere_see_settings_alone():
    seen = remote_actor_environment(DRIVER)
    assert seen.keys() == SETTINGS | QUIET.keys()


def test_one_thread_an_actor_unless_it_was_set():
    assert remote_actor_environment({}) == {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **QUIET}
