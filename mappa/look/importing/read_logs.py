"""Reads logs without making a run, and refuses what could not be judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mappa.look.importing.documents import read_documents
from mappa.look.importing.formats import FORMATS, find_format
from mappa.look.importing.log_mapping import Format, LoggedTrajectory, LogMapping
from mappa.look.importing.play_sources import parse_documents
from mappa_core import InputError
from mappa_core.config.agent_names import describe_name_fault
from mappa_core.redaction import clean_name


def read_logs(
    paths: Sequence[Path], mapping: LogMapping, file_format: Format | None
) -> tuple[list[LoggedTrajectory], Format]:
    """Read the rollouts of logs, in their order, and the format. Raises InputError as `import_logs` does."""
    documents = read_documents(paths)
    names = ", ".join(map(str, paths))
    if not documents:
        raise InputError(f"{names}: there is no entry in it")
    chosen = file_format or find_format(documents)
    logs = parse_documents(documents, mapping, chosen)
    check_agents(logs, mapping.agents)
    if FORMATS[chosen].entries == "messages":
        check_texts(logs, names)
    return logs, chosen


def check_agents(logs: Sequence[LoggedTrajectory], declared: Iterable[str]) -> None:
    """Raise InputError for names that a verdict could not hold; the place is that of the log that brings them."""
    names = list(declared)
    if fault := describe_name_fault(names):
        raise InputError(f"--agent: {fault}; name the agent otherwise")
    for log in logs:
        new = {act.agent: None for act in log.acts if act.agent not in names}
        names += new
        if new and (fault := describe_name_fault(names)):
            raise InputError(
                f"{clean_name(log.place)}: {fault}; --agent-from names the key (of spans: the attribute) that holds "
                "the name of an agent, --person a speaker that is none, --unnamed who acts where none is named"
            )


def check_texts(logs: Sequence[LoggedTrajectory], names: str) -> None:
    """Raise InputError if nobody says anything: the texts stand elsewhere, and empty actions would be judged."""
    replies = [act.reply for log in logs if log.has_text for act in log.acts]
    if replies and not any(reply.content.strip() or reply.reasoning or reply.tool_calls for reply in replies):
        raise InputError(
            f"{names}: {len(replies):,} of {len(replies):,} actions have no text: which key holds it? --text KEY"
        )
