"""How ranks find each other: one process group of torch per group of learners, over gloo or nccl."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where rank 0 waits for the others."""

    host: str
    port: int


def meeting() -> Meeting:
    """A place on this machine that is free now: the address that other machines reach it by, and a port."""
    host = socket.gethostbyname(socket.gethostname())
    with socket.socket() as one:
        one.bind((host, 0))
        return Meeting(host=host, port=one.getsockname()[1])


def join(place: Meeting, *, rank: int, ranks: int, gpu: bool, patience_s: float) -> None:
    """Meet the other ranks. Whoever waits for another longer than `patience_s`, now or later, gets an error."""
    # Every rank has a process, and on a GPU sees that one alone.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": place.host, "MASTER_PORT": str(place.port)}
    if not gpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel("WARNING")
    # Shared memory between ranks on CPUs: compiled for most of a minute at every first start, and gloo does as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        "nccl" if gpu else "gloo",
        auto_mpi_discovery=False,
        init_method=f"tcp://{place.host}:{place.port}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=patience_s),
    )


def leave() -> None:
    """Let go of the process group."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def summed(sums: Mapping[str, float]) -> dict[str, float]:
    """Sums over all ranks by name; a rank may lack names that another has. Every rank comes to the same numbers."""
    parts: list[Mapping[str, float]] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, dict(sums))
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, one in part.items():
            total[name] += one
    return dict(total)
