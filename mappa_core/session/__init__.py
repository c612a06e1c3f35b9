"""Sessions: builds, opens and closes all objects of a run from a resolved config and a registry."""

from mappa_core.session.builder import Session, check_prices, open_session
from mappa_core.session.cassette import attach_cassette
from mappa_core.session.credit import build_estimator, build_experience_builder
from mappa_core.session.eval_split import EvalPart
from mappa_core.session.program_runner import open_program_runner
from mappa_core.session.runtime import attach_coaches, record_session_events

__all__ = [
    "EvalPart",
    "Session",
    "attach_cassette",
    "attach_coaches",
    "build_estimator",
    "build_experience_builder",
    "check_prices",
    "open_program_runner",
    "open_session",
    "record_session_events",
]
