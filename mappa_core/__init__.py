"""What a plugin or a notebook imports: listed in `__init__.pyi`, imported on first use, so that this costs nothing."""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mappa-core")
    return _load(name)
