"""Hand-off contracts: the files that a role needs and produces, checked by machine."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_core.records import Breach, Role


def breaches(
    agent: str, role: Role, files_before: Sequence[str], files_now: Sequence[str] | None
) -> tuple[Breach, ...]:
    """What `agent` was not given, and what it did not leave.

    `files_before` are the workspace's files when the agent began its action: a file of `role.needs` that is not among
    them is a missing input. It stands on the agent's own step, so that a coach sees that the agent worked without it.

    `files_now` are the files after the action. An output is due when the agent's turns end, not before: pass None
    while it has turns left. Files are named exactly, relative to the workspace; there are no patterns. Only presence
    is checked: what is in a file is for the coach to judge.
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


def _missing(wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    present = frozenset(there)
    return [path for path in wanted if path not in present]
