"""Errors of both engines; those of the cluster are in `cluster/errors.py`."""

from __future__ import annotations

from mappa_core import InputError


class ModelError(InputError):
    """A model folder cannot be used: weights, tokenizer or chat template are missing or do not load."""
