"""Hand-off contracts: check the files that a role needs and produces."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_core.records import Breach, Role


def find_breaches(
    agent: str, role: Role, files_before: Sequence[str], files_now: Sequence[str] | None
) -> tuple[Breach, ...]:
    """Find the missing inputs and outputs of `agent`. `files_before` are the workspace's files when the agent began its
    action; a missing input is recorded on the agent's own step, so that a coach sees that it worked without it.
    `files_now` are those after the action, None while the agent has turns left, as outputs are due when they end. Files
    are named exactly, relative to the workspace. Only presence is checked: the coach judges the content."""
    missing = [path for path in role.needs if path not in files_before]
    due = [] if files_now is None else [path for path in role.produces if path not in files_now]
    began, ended = "not there when the agent began", "not there when the agent's turns ended"
    return (
        *(Breach(agent=agent, kind="missing_input", path=path, detail=began) for path in missing),
        *(Breach(agent=agent, kind="missing_output", path=path, detail=ended) for path in due),
    )
