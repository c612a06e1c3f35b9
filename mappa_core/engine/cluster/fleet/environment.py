"""Which environment variables an actor gets: an allow-list, so that no key of a coach or provider reaches a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

MACHINE = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX", "MAX_JOBS", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
})  # fmt: skip
"""Variables that describe this machine: they go to the actors of a Ray that is started here, and to no other."""

MACHINE_PREFIXES = ("LC_", "CUDA_", "NVIDIA_")

SETTINGS = frozenset({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
"""Variables that hold wherever an actor runs."""

SETTINGS_PREFIXES = (
    "NCCL_", "GLOO_", "UCX_", "FI_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH_", "PYTORCH_", "TORCHDYNAMO_",
    "TORCHINDUCTOR_", "TRITON_", "VLLM_", "DS_", "TOKENIZERS_",
)  # fmt: skip
"""The same of the libraries that compute, by the first part of their names."""

SECRETS = frozenset({
    "KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "AUTH",
})  # fmt: skip
"""Parts of a name that make it a secret whatever it begins with: VLLM_API_KEY for example."""

ALWAYS: Mapping[str, str] = MappingProxyType(
    {
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
)
"""Nobody reports home."""

UNLESS_SET: Mapping[str, str] = MappingProxyType({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
"""Several actors share the cores of a machine: with a thread for every core each, all of them crawl."""


def of_this_machine(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of `environment` for a Ray that is started here, which its actors inherit."""
    found = _kept(environment, MACHINE | SETTINGS, (*MACHINE_PREFIXES, *SETTINGS_PREFIXES))
    # Libraries look for their compilers beside the interpreter, which a virtual environment may not have on its path.
    beside = str(Path(sys.executable).parent)
    found["PATH"] = os.pathsep.join([beside, found["PATH"]] if "PATH" in found else [beside])
    return found


def of_any_machine(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of `environment` for actors of a cluster that runs already: nothing that describes this machine."""
    return _kept(environment, SETTINGS, SETTINGS_PREFIXES)


def _kept(environment: Mapping[str, str], names: frozenset[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    passed = {
        name: value
        for name, value in environment.items()
        if (name in names or name.startswith(prefixes)) and not SECRETS & set(name.upper().split("_"))
    }
    return {**UNLESS_SET, **passed, **ALWAYS}
