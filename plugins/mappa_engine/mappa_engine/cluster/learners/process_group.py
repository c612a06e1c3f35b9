"""Process group of a learner group's ranks: rendezvous, set-up over gloo or nccl, and sums over ranks."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is only there where torch was built with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Address on which rank 0 waits for the others."""

    host: str
    port: int


def free_address() -> Rendezvous:
    """Find a free port on this machine, with the address by which other machines reach it: Ray's, as the machine's own
    name often means 127.0.1.1."""
    import ray

    host = ray.util.get_node_ip_address()
    with socket.socket() as listener:
        listener.bind((host, 0))
        return Rendezvous(host=host, port=listener.getsockname()[1])


def open_store(ranks: int, timeout_s: float) -> tuple[Rendezvous, TCPStore]:
    """Open the store at which `ranks` ranks meet, on a port that it holds from now on: seconds of imports lie before
    they join, in which another process could take one that was merely free."""
    import ray

    host = ray.util.get_node_ip_address()
    store = TCPStore(host, 0, ranks, True, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    return Rendezvous(host=host, port=store.port), store


def init_process_group(
    rendezvous: Rendezvous,
    store: TCPStore | None,
    *,
    rank: int,
    ranks: int,
    gpu: bool,
    timeout_s: float,
) -> None:
    """Join the process group; `store` is that of rank 0, which opened it. A rank that waits for another longer than
    `timeout_s`, now or later, gets an error."""
    # Every rank is a process, which on GPUs sees one GPU only.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": rendezvous.host, "MASTER_PORT": str(rendezvous.port)}
    if not gpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
        if (interface := _interface_of_this_node()) is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel("WARNING")
    # Shared memory between CPU ranks compiles for most of a minute at the first start, and gloo works as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend, timeout = "nccl" if gpu else "gloo", timedelta(seconds=timeout_s)
    if store is None:
        store = TCPStore(rendezvous.host, rendezvous.port, ranks, False, timeout=timeout)
    # DeepSpeed takes an address only; it goes on with a group that is there.
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, timeout=timeout)


def _interface_of_this_node() -> str | None:
    """Return the network interface of the address that Ray knows this machine by; None where several nodes are on one
    machine. gloo by itself takes the one that the machine's name means."""
    import psutil
    import ray

    address = ray.util.get_node_ip_address()
    return next(
        (name for name, own in psutil.net_if_addrs().items() if any(entry.address == address for entry in own)), None
    )


def threads_per_rank() -> int:
    """Return the number of this machine's cores for each rank of the group on it. All ranks take part."""
    hosts = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(hosts, socket.gethostname())
    return max(1, len(os.sched_getaffinity(0)) // hosts.count(socket.gethostname()))


def destroy_process_group() -> None:
    """Destroy the process group, if there is one."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def all_reduce_sums(sums: Mapping[str, float]) -> dict[str, float]:
    """Sum values over all ranks by name; a rank may lack names that another has. Every rank gets equal results."""
    parts: list[Mapping[str, float]] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, dict(sums))
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return dict(total)
