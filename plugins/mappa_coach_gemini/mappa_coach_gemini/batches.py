"""Gemini's batch mode: requests go up in one call, and replies come back in the job.

The SDK sends the calls. Its jobs lack counts and reasons, and an error with details fails their parser, so that what
was received is parsed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from google.genai import types
from msgspec import Raw, Struct, field

from mappa_batch import BatchOptions, BatchState, Outcome, outcome_of, results_bytes
from mappa_coach_gemini.options import Options
from mappa_coach_gemini.request import build_batch_request, build_http_options
from mappa_coach_gemini.response import parse_error, parse_response
from mappa_coach_gemini.transport import GeminiTransport, received_bodies
from mappa_core import ConfigError
from mappa_core.transport import CallError, CallFault, Request, decode_answer, reply_bytes

Shape = TypeVar("Shape")

ENDED: dict[str, tuple[CallFault, str]] = {
    "SUCCEEDED": ("garbled", "it ended without an answer to this call"),
    "PARTIALLY_SUCCEEDED": ("server", "it ended without an answer to this call"),
    "FAILED": ("server", "it failed"),
    "EXPIRED": ("timeout", "it expired before this call was made"),
    "CANCELLED": ("request", "it was cancelled before this call was made"),
}
"""State of a batch that has ended -> fault and reason of calls without a result."""
STATE_PREFIXES = ("BATCH_STATE_", "JOB_STATE_")
STATUS_OF_CODE = {
    1: 499, 2: 500, 3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501, 13: 500, 14: 503,
    15: 500, 16: 401,
}  # fmt: skip
"""Code of an error inside a batch (google.rpc.Code) -> the HTTP status that Google maps it to."""
API_VERSION = "v1beta"
"""The version that has batches."""
ID_KEY = "key"
"""The key of a call's id in its metadata."""
PAGE = 100
CLOCK_TOLERANCE = timedelta(minutes=1)


class _Stats(Struct, rename="camel"):
    # Counts of 64 bits are text in proto3's JSON, and left out where they are 0.
    successful_request_count: int | str = 0
    failed_request_count: int | str = 0


class _Result(Struct):
    response: Raw = Raw(b"null")
    error: Raw = Raw(b"null")
    metadata: dict[str, str] | None = None


class _Results(Struct, rename="camel"):
    inlined_responses: list[_Result] | None = None


class _Output(Struct, rename="camel"):
    inlined_responses: _Results | None = None


class _Metadata(Struct, rename="camel"):
    display_name: str | None = None
    state: str | None = None
    create_time: datetime | None = None
    batch_stats: _Stats | None = None
    output: _Output | None = None


class _Error(Struct):
    code: int | None = None
    message: str | None = None


class _Job(Struct):
    name: str
    metadata: _Metadata = field(default_factory=_Metadata)
    error: _Error | None = None

    @property
    def state(self) -> str:
        """State without its prefix."""
        found = self.metadata.state or "UNKNOWN"
        return next((found.removeprefix(prefix) for prefix in STATE_PREFIXES if found.startswith(prefix)), found)

    @property
    def results(self) -> Sequence[_Result]:
        output = self.metadata.output
        inlined = None if output is None else output.inlined_responses
        return () if inlined is None else inlined.inlined_responses or ()


class _Page(Struct, rename="camel"):
    operations: list[_Job] | None = None
    next_page_token: str | None = None


def _status(error: str) -> int:
    """HTTP status of an error inside a batch; 500 if there is none or it names no code."""
    found = decode_answer(error, _Error) if error != "null" else _Error()
    return 500 if found.code is None else STATUS_OF_CODE.get(found.code, found.code)


class GeminiBatches(GeminiTransport):
    """Implements mappa_batch.BatchWire, with requests and replies inlined."""

    max_requests = 100_000
    max_bytes = 18 * 2**20

    def __init__(self, options: Options) -> None:
        if options.vertex:
            raise ConfigError(
                "gemini: batch_api: Vertex AI takes batches from its own storage alone: leave out batch_api or vertex"
            )
        super().__init__(options)
        self._timeout_s = (options.batch_api or BatchOptions()).timeout_s
        self._http_options = build_http_options(self._timeout_s)
        self._http_options.api_version = API_VERSION

    async def submit(self, token: str, requests: Mapping[str, Request]) -> str:
        lines: list[Any] = [
            types.InlinedRequest(metadata={ID_KEY: call_id}, **build_batch_request(self._options, request))
            for call_id, request in requests.items()
        ]
        config = types.CreateBatchJobConfig(display_name=token, http_options=self._http_options)
        return (await self._receive(self._batches.create(model=self.model, src=lines, config=config), _Job)).name

    async def find(self, token: str, count: int, since: datetime) -> str | None:
        page_token: str | None = None
        while True:
            config = types.ListBatchJobsConfig(page_size=PAGE, page_token=page_token, http_options=self._http_options)
            page = await self._receive(self._batches.list(config=config), _Page)
            jobs = page.operations or []
            for job in jobs:
                if job.metadata.display_name == token:
                    return job.name
            page_token = page.next_page_token
            created = [job.metadata.create_time for job in jobs if job.metadata.create_time is not None]
            # The newest come first.
            if not page_token or not created or min(created) < since - CLOCK_TOLERANCE:
                return None

    async def poll(self, name: str) -> BatchState:
        job = await self._retrieve(name)
        stats = job.metadata.batch_stats or _Stats()
        answered, failed = int(stats.successful_request_count), int(stats.failed_request_count)
        if job.state not in ENDED:
            return BatchState(ended=False, status=job.state.lower(), replies=answered, failures=failed)
        fault, reason = ENDED[job.state]
        if job.error is not None and job.error.message:
            reason = self._hide(f"{reason}: {job.error.message}")
        return BatchState(
            ended=True, status=job.state.lower(), replies=answered, failures=failed, unanswered=fault, reason=reason
        )

    async def results(self, name: str, ids: Sequence[str]) -> Mapping[str, Outcome]:
        with reply_bytes(results_bytes(len(ids))):
            found = (await self._retrieve(name)).results
        # Where a server leaves the metadata out, the order is that of the requests, as Google says.
        in_order = ids if len(found) == len(ids) else [""] * len(found)
        return {
            (result.metadata or {}).get(ID_KEY, id_in_order): self._outcome(result)
            for result, id_in_order in zip(found, in_order, strict=True)
        }

    @property
    def _batches(self) -> Any:
        return self._client.get()[0].aio.batches

    async def _retrieve(self, name: str) -> _Job:
        config = types.GetBatchJobConfig(http_options=self._http_options)
        return await self._receive(self._batches.get(name=name, config=config), _Job)

    async def _receive(self, call: Any, shape: type[Shape]) -> Shape:
        """Send through the SDK; parse what was received."""
        bodies: list[str] = []
        collecting = received_bodies.set(bodies)
        try:
            await self._send(call, self._timeout_s)
        except (ValueError, TypeError, AttributeError, KeyError):
            # The SDK's parser, which failed on an answer that has arrived; without one it is a bug.
            if not bodies:
                raise
        finally:
            received_bodies.reset(collecting)
        return decode_answer(self._scrub(bodies[-1]), shape)

    def _outcome(self, result: _Result) -> Outcome:
        response, error = bytes(result.response).decode(), bytes(result.error).decode()
        if response != "null":
            return outcome_of(lambda: parse_response(response, self.model))
        fault, message = parse_error(_status(error), error)
        return CallError(fault, self._hide(message), free=True)
