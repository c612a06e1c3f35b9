"""The tool `python`: runs programs of agents, each in its own sandboxed process."""

# The fork server imports this package, so nothing is imported here before it is used.
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
