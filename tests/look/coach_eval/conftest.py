"""Labelled actions written down as tests need them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mappa.look.coach_eval.labelled_actions import LabelledAction
from mappa_core import Completion, Message, Role, Scene, Step, Task


def _labelled(
    trajectory: str,
    label: float,
    *,
    agent: str = "solver",
    position: int = 0,
    text: str = "an answer",
    tokens: int | None = None,
    strata: dict[str, str] | None = None,
    reference: str | None = None,
) -> LabelledAction:
    completion = Completion(
        text=text,
        prompt_tokens=None,
        tokens=None if tokens is None else np.arange(tokens, dtype=np.int32),
        logprobs=None if tokens is None else np.zeros(tokens, dtype=np.float32),
        finish="stop",
    )
    step = Step(
        id=f"{trajectory}/{position:03d}",
        agent=agent,
        turn=0,
        position=position,
        policy=agent,
        messages=(Message(role="user", content="2 + 2?"),),
        reply=Message(role="assistant", content=text),
        completion=completion,
        strata=strata or {},
    )
    task = Task(id=trajectory, prompt="2 + 2?", reference=reference, stratum="sum")
    role = Role(brief="answers")
    scene = Scene(task=task, role=role, step=step, team={agent: role})
    return LabelledAction(scene=scene, label=label, trajectory=trajectory)


@pytest.fixture(scope="session")
def labelled() -> Callable[..., LabelledAction]:
    return _labelled
