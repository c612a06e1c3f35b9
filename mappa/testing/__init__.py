"""Test tools for plugin authors: run a workflow without a model, a local fake provider, and a contract to subclass for
every kind of offer. They need `pip install "mappa[test]"`, and `asyncio_mode = "auto"` in the settings of
pytest."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
