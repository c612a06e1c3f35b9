"""Anthropic's Message Batches: requests go up in one call, results come down as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import DecodeError, Raw, Struct, json

from mappa_batch import BatchOptions, BatchState, Outcome, outcome_of, results_bytes
from mappa_coach_anthropic.options import Options
from mappa_coach_anthropic.request import build_arguments
from mappa_coach_anthropic.response import parse_error, parse_message
from mappa_coach_anthropic.transport import AnthropicTransport
from mappa_core.transport import CallError, CallFault, Request, decode_answer, reply_bytes

FAULT_OF_RESULT: dict[str, tuple[CallFault, str]] = {
    "expired": ("timeout", "the batch expired before this call was made"),
    "canceled": ("request", "the batch was cancelled before this call was made"),
}
"""Type of a result without a message or an error -> fault and reason."""
PAGE = 100
CLOCK_TOLERANCE = timedelta(minutes=1)


class _Counts(Struct):
    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0

    @property
    def failed(self) -> int:
        return self.errored + self.canceled + self.expired


class _Batch(Struct):
    id: str
    processing_status: str
    created_at: datetime | None = None
    request_counts: _Counts | None = None


class _Page(Struct):
    data: list[_Batch]


class _Result(Struct):
    type: str
    message: Raw = Raw(b"null")
    error: Raw = Raw(b"null")


class _Line(Struct):
    custom_id: str
    result: _Result


class AnthropicBatches(AnthropicTransport):
    """Implements mappa_batch.BatchWire."""

    max_requests = 100_000
    max_bytes = 240 * 2**20

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._timeout_s = (options.batch_api or BatchOptions()).timeout_s

    async def submit(self, token: str, requests: Mapping[str, Request]) -> str:
        lines: list[Any] = [
            {"custom_id": call_id, "params": self._body(request)} for call_id, request in requests.items()
        ]
        batches = self._client.get().messages.batches.with_raw_response
        text = await self._receive(batches.create(requests=lines, timeout=self._timeout_s), self._timeout_s)
        return decode_answer(text, _Batch).id

    async def find(self, token: str, count: int, since: datetime) -> str | None:
        """Return a batch of as many calls from that time: a batch has no room for a token. Whether it is that one is
        seen by the ids of its results; those of another batch answer no call."""
        batches = self._client.get().messages.batches.with_raw_response
        text = await self._receive(batches.list(limit=PAGE, timeout=self._timeout_s), self._timeout_s)
        for batch in decode_answer(text, _Page).data:
            counts = batch.request_counts or _Counts()
            late_enough = batch.created_at is not None and batch.created_at >= since - CLOCK_TOLERANCE
            if late_enough and counts.processing + counts.succeeded + counts.failed == count:
                return batch.id
        return None

    async def poll(self, name: str) -> BatchState:
        batches = self._client.get().messages.batches.with_raw_response
        text = await self._receive(batches.retrieve(name, timeout=self._timeout_s), self._timeout_s)
        batch = decode_answer(text, _Batch)
        counts = batch.request_counts or _Counts()
        return BatchState(
            ended=batch.processing_status == "ended",
            status=batch.processing_status,
            replies=counts.succeeded,
            failures=counts.failed,
        )

    async def results(self, name: str, ids: Sequence[str]) -> Mapping[str, Outcome]:
        batches = self._client.get().messages.batches.with_raw_response
        with reply_bytes(results_bytes(len(ids))):
            text = await self._receive(batches.results(name, timeout=self._timeout_s), self._timeout_s)
        return dict(self._read(text))

    def _body(self, request: Request) -> dict[str, Any]:
        body = build_arguments(self._options, request)
        extra = body.pop("extra_body", {})
        del body["timeout"]
        return {**body, **extra}

    def _read(self, text: str) -> Iterator[tuple[str, Outcome]]:
        """Parse the lines of the results; one that is broken answers no call."""
        for line in text.splitlines():
            try:
                found = json.decode(line, type=_Line)
            except DecodeError:
                continue
            yield found.custom_id, self._outcome(found.result)

    def _outcome(self, result: _Result) -> Outcome:
        if result.type == "succeeded":
            body = bytes(result.message).decode()
            return outcome_of(lambda: parse_message(body, self.model))
        if result.type in FAULT_OF_RESULT:
            return CallError(*FAULT_OF_RESULT[result.type], free=True)
        fault, message = parse_error(None, bytes(result.error).decode())
        return CallError(fault, self._hide(message.removeprefix("status 200: ")), free=True)
