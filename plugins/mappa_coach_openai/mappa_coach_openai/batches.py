"""OpenAI's Batch API: a file of requests goes up, files of replies and of errors come down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec import json as wire_json

from mappa_batch import BatchOptions, BatchState, Outcome, outcome_of, results_bytes
from mappa_coach_openai.options import Options
from mappa_coach_openai.request import build_chat_arguments, build_response_arguments
from mappa_coach_openai.response import parse_chat_completion, parse_error, parse_response
from mappa_coach_openai.transport import OpenAITransport
from mappa_core.transport import CallError, CallFault, Request, decode_answer, reply_bytes

ENDED: dict[str, tuple[CallFault, str]] = {
    "completed": ("garbled", "it ended without an answer to this call"),
    "expired": ("timeout", "it expired before this call was made"),
    "cancelled": ("request", "it was cancelled before this call was made"),
    "failed": ("request", "it failed"),  # its errors say more
}
"""Status of a batch that has ended -> fault and reason of calls without a line in its files."""
FAULT_OF_BATCH_ERROR: dict[str | None, CallFault] = {
    "token_limit_exceeded": "rate_limit",
    "batch_expired": "timeout",
    "batch_cancelled": "request",
}
TOKEN_KEY = "mappa"
"""The key of the token in a batch's metadata."""
PAGE = 100


class _Named(Struct):
    id: str


class _Counts(Struct):
    completed: int = 0
    failed: int = 0


class _Error(Struct):
    code: str | None = None
    message: str | None = None


class _Errors(Struct):
    data: list[_Error] | None = None


class _Batch(Struct):
    id: str
    status: str
    created_at: float | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: _Counts | None = None
    errors: _Errors | None = None
    metadata: dict[str, str] | None = None


class _Page(Struct):
    data: list[_Batch]
    has_more: bool = False


class _Response(Struct):
    status_code: int
    body: Raw = Raw(b"null")


class _Line(Struct):
    custom_id: str
    response: _Response | None = None
    error: _Error | None = None


class OpenAIBatches(OpenAITransport):
    """Implements mappa_batch.BatchWire."""

    max_requests = 50_000
    max_bytes = 190 * 2**20

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._timeout_s = (options.batch_api or BatchOptions()).timeout_s
        self._endpoint = "/v1/responses" if options.api == "responses" else "/v1/chat/completions"

    async def submit(self, token: str, requests: Mapping[str, Request]) -> str:
        client = self._client.get()
        lines = "\n".join(json.dumps(self._line(call_id, request)) for call_id, request in requests.items())
        file = (f"{token}.jsonl", lines.encode())
        uploading = client.files.with_raw_response.create(file=file, purpose="batch", timeout=self._timeout_s)
        uploaded = decode_answer(await self._receive(uploading, self._timeout_s), _Named)
        endpoint: Any = self._endpoint
        creating = client.batches.with_raw_response.create(
            input_file_id=uploaded.id,
            endpoint=endpoint,
            completion_window="24h",
            metadata={TOKEN_KEY: token},
            timeout=self._timeout_s,
        )
        return decode_answer(await self._receive(creating, self._timeout_s), _Batch).id

    async def find(self, token: str, count: int, since: datetime) -> str | None:
        listing: dict[str, Any] = {"limit": PAGE, "timeout": self._timeout_s}
        while True:
            call = self._client.get().batches.with_raw_response.list(**listing)
            page = decode_answer(await self._receive(call, self._timeout_s), _Page)
            for batch in page.data:
                if (batch.metadata or {}).get(TOKEN_KEY) == token:
                    return batch.id
            # The newest come first. A minute is for clocks that differ.
            if not page.has_more or not page.data or (page.data[-1].created_at or 0.0) < since.timestamp() - 60.0:
                return None
            listing["after"] = page.data[-1].id

    async def poll(self, name: str) -> BatchState:
        batch = await self._retrieve(name)
        counts = batch.request_counts or _Counts()
        if batch.status not in ENDED:
            return BatchState(ended=False, status=batch.status, replies=counts.completed, failures=counts.failed)
        fault, reason = ENDED[batch.status]
        if batch.status == "failed":
            errors = (batch.errors.data if batch.errors else None) or [_Error()]
            fault = FAULT_OF_BATCH_ERROR.get(errors[0].code, "request")
            reason = self._hide(f"it failed: {'; '.join(str(error.message or error.code) for error in errors[:3])}")
        return BatchState(
            ended=True, status=batch.status, replies=counts.completed, failures=counts.failed,
            unanswered=fault, reason=reason,
        )  # fmt: skip

    async def results(self, name: str, ids: Sequence[str]) -> Mapping[str, Outcome]:
        batch = await self._retrieve(name)
        outcomes: dict[str, Outcome] = {}
        for file in (batch.output_file_id, batch.error_file_id):
            if file is None:
                continue
            call = self._client.get().files.with_raw_response.content(file, timeout=self._timeout_s)
            with reply_bytes(results_bytes(len(ids))):
                text = await self._receive(call, self._timeout_s)
            outcomes |= dict(self._read(text))
        return outcomes

    async def _retrieve(self, name: str) -> _Batch:
        call = self._client.get().batches.with_raw_response.retrieve(name, timeout=self._timeout_s)
        return decode_answer(await self._receive(call, self._timeout_s), _Batch)

    def _line(self, custom_id: str, request: Request) -> dict[str, Any]:
        build = build_response_arguments if self._options.api == "responses" else build_chat_arguments
        body = build(self._options, request)
        extra = body.pop("extra_body", {})
        del body["timeout"]
        return {"custom_id": custom_id, "method": "POST", "url": self._endpoint, "body": {**body, **extra}}

    def _read(self, text: str) -> Iterator[tuple[str, Outcome]]:
        """Parse the lines of a file; one that is broken answers no call."""
        for line in text.splitlines():
            try:
                found = wire_json.decode(line, type=_Line)
            except DecodeError:
                continue
            yield found.custom_id, self._outcome(found)

    def _outcome(self, line: _Line) -> Outcome:
        if line.response is None:
            error = line.error or _Error()
            fault = FAULT_OF_BATCH_ERROR.get(error.code, "server")
            return CallError(fault, self._hide(str(error.message or error.code or "no answer and no error")), free=True)
        body = bytes(line.response.body).decode()
        if line.response.status_code != 200:
            fault, message = parse_error(line.response.status_code, body)
            return CallError(fault, self._hide(message), free=True)
        parse = parse_response if self._options.api == "responses" else parse_chat_completion
        return outcome_of(lambda: parse(body, self.model))
