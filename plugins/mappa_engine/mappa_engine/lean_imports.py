"""Imports transformers without scikit-learn."""

from __future__ import annotations

from transformers import utils


def import_transformers() -> None:
    """Import what of transformers would import scikit-learn, and with it pandas and SciPy, where it is installed.

    Only assisted generation asks for it, which engines do not use, and importing it takes about a quarter of the time
    that a short run takes to start. Other modules of transformers still find it.
    """
    known = utils.is_sklearn_available
    utils.is_sklearn_available = lambda: False
    try:
        import transformers.generation.candidate_generator  # noqa: F401
    finally:
        utils.is_sklearn_available = known
