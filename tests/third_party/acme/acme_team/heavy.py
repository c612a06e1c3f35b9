"""Represents a module that takes seconds to import."""

from typing import Any


def loss(new_logprobs: Any, rows: Any, advantages: Any) -> tuple[Any, dict[str, Any]]:
    return -(new_logprobs * advantages), {}
