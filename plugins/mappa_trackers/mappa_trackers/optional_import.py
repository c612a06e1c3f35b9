"""Import of the optional libraries of the tracked services."""

from __future__ import annotations

import importlib
from typing import Any

from mappa_core import ConfigError


def import_library(module: str, extra: str) -> Any:
    """Import a module of the extra `extra`. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'trackers: {extra} needs a library that is not installed ({error}): pip install "mappa-trackers[{extra}]"'
        ) from error
