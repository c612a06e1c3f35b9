"""The libraries of services, which a run may do without."""

from __future__ import annotations

import importlib
from typing import Any

from mappa_core import ConfigError


def library(module: str, extra: str) -> Any:
    """The module of this name. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'trackers: {extra} needs a library that is not installed ({error}): pip install "mappa-trackers[{extra}]"'
        ) from error
