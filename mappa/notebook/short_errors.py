"""Errors of people who call from a cell or a script: the message, and their own line."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from mappa_core.errors import GuardStop, InputError
from mappa_core.redaction import clean

P = ParamSpec("P")
T = TypeVar("T")


def with_short_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Raise errors that say what to do without the lines of Mappa that they passed; a notebook shows the message alone.
    All others, as those of a workflow of one's own, keep them."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except (InputError, GuardStop, KeyboardInterrupt) as error:
            said = [f"{type(error).__name__}: {error}".removesuffix(": "), *getattr(error, "__notes__", ())]
            # IPython's protocol for errors that are shown their own way.
            vars(error)["_render_traceback_"] = lambda: [clean(line) for line in said]
            raise error.with_traceback(None) from error.__cause__ if isinstance(error, GuardStop) else None

    return call
