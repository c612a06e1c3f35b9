"""Sessions: builds, opens and closes all objects of a run from a resolved config and a registry."""

from mappa_core.session.bench import open_program_runner
from mappa_core.session.cassette import attach_cassette
from mappa_core.session.opening import Session, build_estimator, check_prices, open_session
from mappa_core.session.parts import EvalPart
from mappa_core.session.starting import attach_coaches, record_session_events

__all__ = [
    "EvalPart",
    "Session",
    "attach_cassette",
    "attach_coaches",
    "build_estimator",
    "check_prices",
    "open_program_runner",
    "open_session",
    "record_session_events",
]
