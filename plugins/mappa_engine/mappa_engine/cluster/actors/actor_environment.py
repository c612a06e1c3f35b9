"""Allow-list of environment variables for actors, so that no API key of a coach or provider reaches a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

MACHINE_VARIABLES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX", "MAX_JOBS", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
})  # fmt: skip
"""Variables that describe this machine: only actors of a Ray that is started here get them."""

MACHINE_PREFIXES = ("LC_", "CUDA_", "NVIDIA_")

PORTABLE_VARIABLES = frozenset({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
"""Variables that are valid on every machine."""

PORTABLE_PREFIXES = (
    "NCCL_", "GLOO_", "UCX_", "FI_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH_", "PYTORCH_", "TORCHDYNAMO_",
    "TORCHINDUCTOR_", "TRITON_", "VLLM_", "DS_", "TOKENIZERS_",
)  # fmt: skip
"""Prefixes of variables of compute libraries, also valid on every machine."""

SECRET_NAME_PARTS = frozenset({
    "KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "AUTH",
})  # fmt: skip
"""Parts of a name that mark a secret whatever its prefix, VLLM_API_KEY for example."""

NO_TELEMETRY: Mapping[str, str] = MappingProxyType(
    {
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
)
"""Disables telemetry of all libraries."""

DEFAULT_VARIABLES: Mapping[str, str] = MappingProxyType({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
"""Defaults unless set. Actors share the cores of a machine: one thread per core in each would slow all of them. For
those that compute `thread_variables` has the number."""


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables of an actor that computes with so many threads: none where the run was started with a number
    of its own."""
    return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}


def local_actor_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables for a Ray that is started here, which its actors inherit."""
    selected = _allowed_variables(
        environment, MACHINE_VARIABLES | PORTABLE_VARIABLES, (*MACHINE_PREFIXES, *PORTABLE_PREFIXES)
    )
    # Libraries need compilers beside the interpreter, whose folder is not on PATH in an unactivated environment.
    interpreter_folder = str(Path(sys.executable).parent)
    selected["PATH"] = os.pathsep.join(
        [interpreter_folder, selected["PATH"]] if "PATH" in selected else [interpreter_folder]
    )
    return selected


def remote_actor_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables for actors of a running cluster: none that describes this machine."""
    return _allowed_variables(environment, PORTABLE_VARIABLES, PORTABLE_PREFIXES)


def _allowed_variables(
    environment: Mapping[str, str], names: frozenset[str], prefixes: tuple[str, ...]
) -> dict[str, str]:
    passed = {
        name: value
        for name, value in environment.items()
        if (name in names or name.startswith(prefixes)) and not SECRET_NAME_PARTS & set(name.upper().split("_"))
    }
    return {**DEFAULT_VARIABLES, **passed, **NO_TELEMETRY}
