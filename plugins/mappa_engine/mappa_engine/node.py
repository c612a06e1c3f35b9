"""This machine as an engine needs it: GPUs and their driver, compilers, memory. Read without torch, in milliseconds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mappa_core.engine import Machine
from mappa_engine.process_info import installed_version

MIB = 1 << 20
LEAST_DRIVERS = {12: 525, 13: 580}
"""The oldest driver, by major release of CUDA (NVIDIA's table of compatibility within a major release)."""
BFLOAT16_CAPABILITY = 8.0
"""Compute capability from which GPUs compute in bfloat16 (Ampere)."""
BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""What Linux calls the instructions of x86 and ARM that multiply bfloat16."""
CUDA_RUNTIME = "nvidia-cuda-runtime"
"""Distribution that torch for GPUs brings CUDA's runtime with; its version is that of CUDA."""
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = 1_000_000_000
"""What ranks of one node hand gradients through, as NVIDIA advises for containers; a container has 64 MB by default."""
_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits")
_TIMEOUT_S = 30.0
_CPU_INFO = Path("/proc/cpuinfo")
_CGROUP_CPUS = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of all cores that a container may use in a period, and that period; `max` is no limit (Linux, v2)."""
_CGROUP_CPUS_V1 = (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
_MEMORY_INFO = Path("/proc/meminfo")
_CGROUP_MEMORY = tuple(Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current", "memory.stat"))
"""Limit of a container, what it has taken, and of what kinds that is (Linux, v2)."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver tells of it; `capability` is None where the driver does not say."""

    name: str
    size: int
    driver: str
    capability: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This machine. Sizes are in bytes; a program or version is None where there is none."""

    gpus: tuple[Gpu, ...]
    memory: int
    shared_memory: int
    nvcc: str | None
    compiler: str | None
    python_headers: bool
    cuda: str | None
    """Release of CUDA that the installed torch was built for."""

    @property
    def machine(self) -> Machine:
        """The machine for placement, with the memory of its smallest GPU."""
        smallest = min((gpu.size for gpu in self.gpus), default=0)
        return Machine(
            host="this machine",
            cpus=os.cpu_count() or 1,
            gpus=len(self.gpus),
            gpu_bytes=smallest,
            memory_bytes=self.memory,
        )

    @property
    def driver_problem(self) -> str | None:
        """Why the driver does not serve the installed torch; None where it does, or nothing is known."""
        if not self.gpus or self.cuda is None:
            return None
        major, driver = int(self.cuda.partition(".")[0]), self.gpus[0].driver
        least = LEAST_DRIVERS.get(major)
        if least is None or int(driver.partition(".")[0]) >= least:
            return None
        return (
            f"driver {driver} is older than the {least} that CUDA {self.cuda} of the installed torch needs: update it"
        )

    @property
    def compiler_problem(self) -> str | None:
        """What is missing to build Triton's launchers, which vLLM does as it starts; None where all is there."""
        missing = [*([] if self.compiler else ["a C compiler"]), *([] if self.python_headers else ["Python's headers"])]
        if not missing:
            return None
        return f"{' and '.join(missing)} are missing, with which Triton builds launchers: apt install gcc python3-dev"

    @property
    def dtype_problem(self) -> str | None:
        """Which GPUs do not compute in bfloat16."""
        old = [gpu for gpu in self.gpus if gpu.capability is not None and gpu.capability < BFLOAT16_CAPABILITY]
        if not old:
            return None
        return (
            f"{old[0].name} has no bfloat16 (compute capability {old[0].capability}): set engine.options.dtype=float32"
        )


@cache
def this_node() -> Node:
    """Look at this machine; the answer does not change."""
    return Node(
        gpus=visible_gpus(parse_gpus(_run(*_QUERY)), os.environ.get("CUDA_VISIBLE_DEVICES")),
        memory=_memory_bytes(),
        shared_memory=shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.is_dir() else 0,
        nvcc=_nvcc(),
        compiler=next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), None),
        python_headers=Path(sysconfig.get_paths()["include"], "Python.h").is_file(),
        cuda=installed_version(CUDA_RUNTIME),
    )


def parse_gpus(listing: str) -> tuple[Gpu, ...]:
    """Parse what nvidia-smi lists: a line of name, MiB, driver and compute capability for each GPU."""
    gpus = []
    for line in listing.splitlines():
        name, size, driver, capability = (cell.strip() for cell in line.rsplit(",", 3))
        known = re.fullmatch(r"\d+\.\d+", capability)
        gpus.append(
            Gpu(name=name, size=int(size) * MIB, driver=driver, capability=float(capability) if known else None)
        )
    return tuple(gpus)


def visible_gpus(gpus: Sequence[Gpu], named: str | None) -> tuple[Gpu, ...]:
    """Select the GPUs that `CUDA_VISIBLE_DEVICES` names, which Ray counts; None: all. Those that are named by an
    identifier are taken for the first ones."""
    if named is None:
        return tuple(gpus)
    shown = []
    for number, name in enumerate(name.strip() for name in named.split(",")):
        index = number if name.startswith(("GPU-", "MIG-")) else int(name) if name.isdecimal() else len(gpus)
        if index >= len(gpus):
            break
        shown.append(gpus[index])
    return tuple(shown)


def _nvcc() -> str | None:
    """Return the release of CUDA's compiler."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    program = shutil.which("nvcc") or shutil.which("nvcc", path=str(Path(home, "bin")))
    found = None if program is None else re.search(r"release (\d+\.\d+)", _run(program, "--version"))
    return None if found is None else found[1]


def bfloat16_instructions() -> tuple[str, ...] | None:
    """Return the instructions by which this processor multiplies bfloat16; None where the system does not tell."""
    if not _CPU_INFO.is_file():
        return None
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _CPU_INFO.read_text(), re.MULTILINE)
    return tuple(sorted(BFLOAT16_FLAGS & set(found[1].split()))) if found else None


def usable_cores() -> int:
    """Return how many cores this process may use: those of its affinity, within the quota of its container."""
    # macOS has no affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores_within(cores, _read_quota())


def cores_within(cores: int, quota: str) -> int:
    """Return how many cores a quota leaves, at least 1. `quota` is `USED PERIOD` in microseconds; `max`, -1 and nothing
    are no limit."""
    used, _, period = quota.partition(" ")
    if not (used.isdecimal() and period.isdecimal() and int(period)):
        return cores
    # Rounded up: threads that share the last core's part wait for it less than a thread alone waits for the others.
    return max(1, min(cores, -(-int(used) // int(period))))


def _read_quota() -> str:
    if _CGROUP_CPUS.is_file():
        return _CGROUP_CPUS.read_text().strip()
    return " ".join(path.read_text().strip() for path in _CGROUP_CPUS_V1 if path.is_file())


def _memory_bytes() -> int:
    """Return the memory of this machine, or of the container that this process is in."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in map(Path, _CGROUP_LIMITS):
        if path.is_file() and (limit := path.read_text().strip()).isdecimal():
            sizes.append(int(limit))
    return min(sizes)


def free_memory() -> int | None:
    """Return what processes can still take of this machine's memory, or of that of the container that this process is
    in; None where the system does not tell."""
    sizes = [_memory_info("MemAvailable"), _free_of_container()]
    return min((size for size in sizes if size is not None), default=None)


def swap_space() -> int:
    """Return the space on disk that this machine moves memory to; 0 where the system tells of none."""
    return _memory_info("SwapTotal") or 0


def _memory_info(name: str) -> int | None:
    found = (
        re.search(rf"^{name}:\s+(\d+) kB$", _MEMORY_INFO.read_text(), re.MULTILINE) if _MEMORY_INFO.is_file() else None
    )
    return None if found is None else 1024 * int(found[1])


def _free_of_container() -> int | None:
    if not all(path.is_file() for path in _CGROUP_MEMORY):
        return None
    limit, taken, parts = (path.read_text() for path in _CGROUP_MEMORY)
    if not limit.strip().isdecimal():
        return None
    # The kernel drops cached files that nobody uses before it ends a process.
    dropped = re.search(r"^inactive_file (\d+)$", parts, re.MULTILINE)
    return int(limit) - int(taken) + (int(dropped[1]) if dropped else 0)


def _run(*program: str) -> str:
    """Return what a program prints; nothing where there is no such program, or it fails."""
    try:
        done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
