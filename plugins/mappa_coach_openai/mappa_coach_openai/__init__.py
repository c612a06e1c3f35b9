"""OpenAI, and every server that speaks its API (vLLM, Ollama, llama.cpp), as a coach or a policy of Mappa."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mappa_coach_openai.options import Options
from mappa_core import Offer, hookimpl

if TYPE_CHECKING:
    from mappa_core.transport import Transport


@hookimpl
def mappa_transports() -> Iterable[Offer[Transport]]:
    yield Offer("openai", _build, Options)


def _build(options: Options) -> Transport:
    if options.batch_api is not None:
        from mappa_batch import gather_calls
        from mappa_coach_openai.batches import OpenAIBatches

        return gather_calls("openai", OpenAIBatches(options), options, Options)
    from mappa_coach_openai.transport import OpenAITransport

    return OpenAITransport(options)
