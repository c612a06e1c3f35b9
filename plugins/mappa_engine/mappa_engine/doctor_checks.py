"""Checks of `mappa doctor`: the libraries of both engines, and the GPUs that they can use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from mappa_core import CheckResult
from mappa_engine.cluster.requirements import INSTALL_COMMAND, REQUIRED_RELEASES, library_problems
from mappa_engine.memory_estimate import format_bytes
from mappa_engine.node import SHARED_MEMORY_BYTES, Node, bfloat16_instructions, this_node, usable_cores
from mappa_engine.process_info import installed_version

if TYPE_CHECKING:
    from mappa_core import Registry

LOCAL_LIBRARIES = ("torch", "transformers", "safetensors")
"""Libraries that the engine `local` needs."""

_FOR = {"local": "installed; for models up to about 0.5 B parameters, engine.use=cluster is for larger ones"}
_IMPORT_PROBE = """
import importlib, json
found = {}
for name in %r:
    try:
        found[name] = {"ok": True, "detail": importlib.import_module(name).__version__}
    except Exception as error:
        found[name] = {"ok": False, "detail": f"{type(error).__name__}: {error}"}
gpus = []
if found["torch"]["ok"]:
    import torch
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        gpus.append(f"{device.name}, {device.total_memory / 2**30:.0f} GiB")
print(json.dumps({"libraries": found, "gpus": gpus}))
"""
"""Runs in its own process, so that a broken driver or library cannot crash the command."""


def check_libraries(registry: Registry) -> Mapping[str, CheckResult]:
    """Import the libraries of the engine `local`."""
    return _probe()[0]


def check_gpus(registry: Registry) -> Mapping[str, CheckResult]:
    """List the GPUs that torch can use."""
    gpus = {f"cuda:{index}": CheckResult(True, name) for index, name in enumerate(_probe()[1])}
    return gpus or {"cuda": CheckResult(False, "none that torch can use; engines run on the CPU")}


def check_processor(registry: Registry) -> Mapping[str, CheckResult]:
    """Check what the engine `local` has to compute with where there is no GPU."""
    instructions = ", ".join(bfloat16_instructions() or ())
    return {
        "cores": CheckResult(True, f"{usable_cores()}, which this process may use"),
        "bfloat16 on CPU": CheckResult(bool(instructions), instructions or "not found; models compute in float32"),
    }


def check_cluster(registry: Registry) -> Mapping[str, CheckResult]:
    """Check the libraries of the engine `cluster`, by metadata only, as importing them takes half a minute."""
    problems = library_problems()
    return {
        name: CheckResult(False, problems[name])
        if name in problems
        else CheckResult(True, str(installed_version(name)))
        for name in REQUIRED_RELEASES
    }


def check_node(registry: Registry) -> Mapping[str, CheckResult]:
    """Check this machine as a node of the engine `cluster`: driver, compilers, memory. `mappa plan` says how much a
    recipe needs."""
    node = this_node()
    driver = node.driver_problem or (f"{node.gpus[0].driver}" if node.gpus else "no GPU is seen here")
    kernels = "not found; libraries that compile kernels as they run (FlashInfer) look for it"
    compiler = node.compiler_problem or f"{node.compiler} and Python's headers, with which Triton builds launchers"
    roomy = node.shared_memory >= SHARED_MEMORY_BYTES
    advice = "" if roomy else f", less than {format_bytes(SHARED_MEMORY_BYTES)}: start a container with --shm-size=8g"
    return {
        "driver": CheckResult(bool(node.gpus) and node.driver_problem is None, driver),
        "bfloat16": CheckResult(bool(node.gpus) and node.dtype_problem is None, node.dtype_problem or _names(node)),
        "compiler": CheckResult(node.compiler_problem is None, compiler),
        "nvcc": CheckResult(node.nvcc is not None, node.nvcc or kernels),
        "node memory": CheckResult(True, format_bytes(node.memory)),
        "/dev/shm": CheckResult(roomy, f"{format_bytes(node.shared_memory)}{advice}"),
    }


def _names(node: Node) -> str:
    return ", ".join(dict.fromkeys(gpu.name for gpu in node.gpus)) or "no GPU is seen here"


def check_engines(registry: Registry) -> Mapping[str, CheckResult]:
    """List the engines of all plugins, and what those of this package lack."""
    lacking = {
        "local": [name for name, result in _probe()[0].items() if not result.ok],
        "cluster": list(library_problems()),
    }
    command = {"local": "pip install mappa-engine", "cluster": INSTALL_COMMAND}
    return {
        name: CheckResult(False, f"lacks {', '.join(lacking[name])}: {command[name]}")
        if lacking.get(name)
        else CheckResult(True, _FOR.get(name, "installed"))
        for name in registry.names("engines")
    }


@cache
def _probe() -> tuple[Mapping[str, CheckResult], tuple[str, ...]]:
    """Import the libraries in a new process; returns the results by library, and the names of the GPUs."""
    program = [sys.executable, "-c", _IMPORT_PROBE % (LOCAL_LIBRARIES,)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        detail = f"importing it ended the process with {done.returncode}: {done.stderr[-200:].strip()}"
        return {name: CheckResult(False, detail) for name in LOCAL_LIBRARIES}, ()
    report = json.loads(done.stdout.splitlines()[-1])
    return {name: CheckResult(**found) for name, found in report["libraries"].items()}, tuple(report["gpus"])
