"""Weights that were fitted to somebody's labels, as a file."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import msgspec

from mappa_core import ConfigError
from mappa_core.files import write_atomic

VERSION = 1
_WRITER = "mappa coach fit evidence"


class WeightsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights of features, in log-odds. `rules` is the hash of the shipped weights that they were drawn to with the
    variance `variance`; `fitted_on` has the hashes of the questions of the `plays` labelled plays that made them."""

    version: int
    rules: str
    variance: float
    plays: int
    weights: dict[str, float]
    fitted_on: list[str]

    def write(self, path: Path) -> None:
        """Write the weights with a hash of all that they say. Raises RunError if the file cannot be written."""
        values = msgspec.to_builtins(self)
        write_atomic(
            path, msgspec.json.format(msgspec.json.encode({**values, "hash": _hash(values)}), indent=1) + b"\n"
        )


def read_weights(path: str, *, rules: str) -> WeightsFile:
    """Read weights that were made for these `rules`. Raises ConfigError for a file that is none, was changed by hand,
    or was made for other rules."""
    file = Path(path).expanduser()
    try:
        values: dict[str, Any] = msgspec.json.decode(file.read_bytes(), type=dict)
        given = values.pop("hash", None)
        found = msgspec.convert(values, WeightsFile)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"weights: {path} is no file that {_WRITER} wrote: {error}") from None
    if given != _hash(values):
        raise ConfigError(f"weights: {path} was changed since {_WRITER} wrote it: fit it again")
    if found.version != VERSION or found.rules != rules:
        raise ConfigError(
            f"weights: {path} was fitted for other rules of the coach than those that are installed: fit it again"
        )
    if not all(map(math.isfinite, found.weights.values())):
        raise ConfigError(f"weights: {path}: a weight is not a finite number")
    return found


def hash_weights(weights: Any) -> str:
    """The hash of shipped weights: it changes with every rule and every number of them."""
    return _hash(dict(weights))


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(values, order="sorted")).hexdigest()[:32]
