"""Run teams of agents, look at what they did, judge them and train them: the application around `mappa_core`.

What a notebook imports is listed in `__init__.pyi` and imported on first use, so that this costs nothing.
"""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mappa")
    return _load(name)
