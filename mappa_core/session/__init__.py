"""A resolved config and a registry made into objects: the one place that builds, opens and closes."""

from mappa_core.session.cassette import coaches_on_cassette, on_cassette
from mappa_core.session.opening import Session, build_estimator, check_prices, open_session
from mappa_core.session.starting import keep_opened

__all__ = [
    "Session",
    "build_estimator",
    "check_prices",
    "coaches_on_cassette",
    "keep_opened",
    "on_cassette",
    "open_session",
]
