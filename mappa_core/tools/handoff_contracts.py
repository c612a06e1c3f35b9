"""Hand-off contracts: check the files that a role needs and produces."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_core.records import Breach, Role


def find_breaches(
    agent: str, role: Role, files_before: Sequence[str], files_now: Sequence[str] | None
) -> tuple[Breach, ...]:
    """Find the missing inputs and missing outputs of `agent`.

    `files_before` are the workspace's files when the agent began its action: a file of `role.needs` that is not among
    them is a missing input. It is recorded on the agent's own step, so that a coach sees that the agent worked without
    it.

    `files_now` are the files after the action. An output is due only when the agent's turns end: pass None while it has
    turns left. Files are named exactly, relative to the workspace; there are no patterns. Only presence is checked: the
    coach judges the content.
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
    present = frozenset(files)
    return [path for path in required if path not in present]
