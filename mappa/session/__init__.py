"""Sessions: builds, opens and closes all objects of a run from a resolved config and a registry."""

from mappa.session.builder import Session, open_session
from mappa.session.eval_split import EvalPart
from mappa.session.runtime import attach_coaches, create_folder_for, record_prompts, record_session_events

__all__ = [
    "EvalPart",
    "Session",
    "attach_coaches",
    "create_folder_for",
    "open_session",
    "record_prompts",
    "record_session_events",
]
