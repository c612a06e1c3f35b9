"""Google's Gemini models, by API key or on Vertex AI, as a coach or a policy of Mappa."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mappa_coach_gemini.options import Options
from mappa_core import Offer, hookimpl

if TYPE_CHECKING:
    from mappa_core.transport import Transport


@hookimpl
def mappa_transports() -> Iterable[Offer[Transport]]:
    yield Offer("gemini", _build, Options)


def _build(options: Options) -> Transport:
    if options.batch_api is not None:
        from mappa_batch import gather_calls
        from mappa_coach_gemini.batches import GeminiBatches

        return gather_calls("gemini", GeminiBatches(options), options, Options)
    from mappa_coach_gemini.transport import GeminiTransport

    return GeminiTransport(options)
