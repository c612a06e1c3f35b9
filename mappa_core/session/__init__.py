"""A resolved config and a registry made into objects: the one place that builds, opens and closes."""

from mappa_core.session.bench import open_bench
from mappa_core.session.cassette import coaches_on_cassette
from mappa_core.session.opening import Session, build_estimator, check_prices, open_session
from mappa_core.session.parts import Part
from mappa_core.session.starting import coaches_in, keep_opened

__all__ = [
    "Part",
    "Session",
    "build_estimator",
    "check_prices",
    "coaches_in",
    "coaches_on_cassette",
    "keep_opened",
    "open_bench",
    "open_session",
]
