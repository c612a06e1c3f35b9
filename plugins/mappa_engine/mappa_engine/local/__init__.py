"""The engine `local`: every policy in this process, on the CPU or one GPU."""

from mappa_engine.local.engine import LocalEngine

__all__ = ["LocalEngine"]
