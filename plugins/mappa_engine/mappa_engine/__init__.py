"""The shared training engine: samples actions and updates policies, on one machine (`local`) or many (`cluster`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
