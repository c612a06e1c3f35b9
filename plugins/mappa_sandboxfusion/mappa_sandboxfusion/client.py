"""Client of the SandboxFusion API: one call is one request with a deadline and a size limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from mappa_core import ToolError
from mappa_core.transport import LoopBound, one_line

T = TypeVar("T")

READ_CHUNK_BYTES = 1 << 16
BASE_ANSWER_BYTES = 1 << 20
"""Limit in bytes for a response without files: the server itself cuts each of the two streams at 1 MiB."""
START_HINT = "is it running there? docs/sandboxfusion.md says how to start one"


class ServerFault(ToolError):
    """A request to a server failed through no fault of the program. The message names the server."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"SandboxFusion at {url}: {reason}")
        self.url = url
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How one command ended. `execution_time` in seconds; no `return_code` where a timeout ended it."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None
    return_code: int | None
    stdout: str | None
    stderr: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCodeResponse:
    """A response of `/run_code`. `files` are those requested files that exist, by the requested path."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str
    compile_result: CommandResult | None
    run_result: CommandResult | None
    files: Mapping[str, bytes]


class FusionClient:
    """Calls one server. Its connections are bound to the event loop of the first call until it is closed.

    Proxies of the environment are not used, redirects are not followed, and nothing is retried: only the caller knows
    whether a retry is safe.
    """

    def __init__(self, url: str, *, connect_timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._session = LoopBound(self._connect, ClientSession.close)

    async def ping(self) -> None:
        """Raise ServerFault where the server does not answer. A server that answers may still fail to run programs."""
        body = await self._exchange("GET", "/v1/ping", None, self._connect_timeout_s, BASE_ANSWER_BYTES)
        if self._decode(body, str) != "pong":
            raise ServerFault(self.url, f"answers {one_line(body.decode(errors='replace'), 80)!r} to a ping")

    async def run_code(
        self,
        code: str,
        *,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        run_timeout_s: float,
        deadline_s: float,
        answer_bytes: int = BASE_ANSWER_BYTES,
        memory_limit_mb: int | None = None,
    ) -> RunCodeResponse:
        """Run the Python program `code` in a folder of its own.

        Args:
            files: files to write into that folder first; an absolute path is used as it is.
            fetch: paths of the files to return.
            run_timeout_s: time after which the server ends the program.
            deadline_s: time limit of the whole call, transfers included.
            answer_bytes: size limit of the response.

        Raises:
            ServerFault: no response says how the program ended.
        """
        request: dict[str, Any] = {
            "language": "python",
            "code": code,
            "run_timeout": run_timeout_s,
            "files": files or {},
            "fetch_files": fetch,
        }
        if memory_limit_mb is not None:
            request["memory_limit_MB"] = memory_limit_mb
        # Encoded in a thread, as the response is decoded: either may be tens of megabytes.
        body = await asyncio.to_thread(msgspec.json.encode, request)
        answer = await self._exchange("POST", "/run_code", body, deadline_s, answer_bytes)
        return await asyncio.to_thread(self._decode, answer, RunCodeResponse)

    async def close(self) -> None:
        await self._session.close()

    def _connect(self) -> ClientSession:
        # One connection per call: a kept-alive one breaks when the server restarts, and the call is lost.
        return ClientSession(
            connector=TCPConnector(limit=0, force_close=True),
            timeout=ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            cookie_jar=DummyCookieJar(),
            # Not compressed: the limit on an answer's size counts the bytes that arrive.
            headers={"accept-encoding": "identity"},
            auto_decompress=False,
            trust_env=False,
        )

    async def _exchange(self, method: str, path: str, body: bytes | None, deadline_s: float, max_bytes: int) -> bytes:
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.get().request(
                    method, self.url + path, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                answer = await self._read(response, max_bytes)
        except TimeoutError as error:
            raise ServerFault(self.url, f"did not answer {path} within {deadline_s:g} s; {START_HINT}") from error
        except (ClientError, OSError) as error:
            reason = one_line(str(error)) or type(error).__name__
            raise ServerFault(self.url, f"the connection failed: {reason}; {START_HINT}") from error
        if response.status != 200:
            raise ServerFault(self.url, _describe_status(response.status, path, answer))
        return answer

    async def _read(self, response: ClientResponse, max_bytes: int) -> bytes:
        answer = bytearray()
        async for data in response.content.iter_chunked(READ_CHUNK_BYTES):
            answer += data
            if len(answer) > max_bytes:
                raise ServerFault(
                    self.url, f"its answer has more than {max_bytes} bytes, which is more than was asked for"
                )
        return bytes(answer)

    def _decode(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ServerFault(self.url, f"this is not an answer of SandboxFusion: {one_line(str(error))}") from error


def _describe_status(status: int, path: str, body: bytes) -> str:
    if 300 <= status < 400:
        return f"it redirects {path} (HTTP {status}); give the address that it leads to"
    if status in (404, 405):
        return f"there is no {path} (HTTP {status}); something else than SandboxFusion listens there"
    return f"HTTP {status} from {path}: {one_line(body.decode(errors='replace'), 300)}"
