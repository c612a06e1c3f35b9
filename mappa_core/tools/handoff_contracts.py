"""Hand-off contracts: check the files that a role needs and produces."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_core.records import Breach, Role


def find_breaches(
    agent: str, role: Role, files_before: Sequence[str], files_now: Sequence[str] | None
) -> tuple[Breach, ...]:
    """Find the missing inputs and outputs of `agent`.

    `files_before` are the workspace's files when the agent began its action; a missing input is recorded on the agent's
    own step, so that a coach sees that it worked without it. `files_now` are those after the action, None while the
    agent has turns left, as outputs are due when they end. Files are named exactly, relative to the workspace. Only
    presence is checked: the coach judges the content.
    """
    inputs = [
        Breach(agent=agent, kind="missing_input", path=path, detail="not there when the agent began")
        for path in _missing(role.needs, files_before)
    ]
    outputs = [
        Breach(agent=agent, kind="missing_output", path=path, detail="not there when the agent's turns ended")
        for path in (() if files_now is None else _missing(role.produces, files_now))
    ]
    return (*inputs, *outputs)


def _missing(required: Sequence[str], files: Sequence[str]) -> list[str]:
    return [path for path in required if path not in files]
