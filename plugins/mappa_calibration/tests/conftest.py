"""Actions as coaches see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mappa_core import Completion, Message, Step


def make_step(agent: str, text: str, **fields: Any) -> Step:
    """A step of which only what matters is given."""
    completion = Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    common = {"turn": 0, "position": 0, "policy": agent, "messages": (Message(role="user", content="Begin."),)}
    reply = Message(role="assistant", content=text)
    return Step(**{**common, "agent": agent, "reply": reply, "completion": completion, **fields})


@pytest.fixture
def act() -> Callable[..., Step]:
    return make_step
