"""The API of a SandboxFusion server, as far as it is used: one call is one request, within a deadline and a size."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from mappa_core import LoopBound, ToolError, one_line

T = TypeVar("T")

CHUNK = 1 << 16
SMALL_ANSWER = 1 << 20
"""Bytes that an answer without files may have: the server itself cuts each of the two streams at 1 MiB."""
START = "is it running there? docs/sandboxfusion.md says how to start one"


class ServerFault(ToolError):
    """A server did not do what it was asked, through no fault of the program. The message names the server."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"SandboxFusion at {url}: {reason}")
        self.url = url
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How one command ended. `execution_time` in seconds; no `return_code` where a timeout ended it."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None
    return_code: int | None
    stdout: str | None
    stderr: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRun:
    """An answer of `/run_code`. `files` are those of the files asked for that are there, by the path asked for."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str
    compile_result: Command | None
    run_result: Command | None
    files: Mapping[str, bytes]


class FusionClient:
    """Calls of one server. Its connections belong to the event loop of the first call, until it is closed.

    The environment's proxies are not used, a redirect is not followed, and nothing is tried again: whoever calls knows
    whether that is safe.
    """

    def __init__(self, url: str, *, connect_timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._session = LoopBound(self._connect, ClientSession.close)

    async def ping(self) -> None:
        """Raise ServerFault where the server does not answer. One that does may still be unable to run a program."""
        body = await self._exchange("GET", "/v1/ping", None, self._connect_timeout_s, SMALL_ANSWER)
        if self._decoded(body, str) != "pong":
            raise ServerFault(self.url, f"answers {one_line(body.decode(errors='replace'), 80)!r} to a ping")

    async def run_code(
        self,
        code: str,
        *,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        run_timeout_s: float,
        deadline_s: float,
        answer_bytes: int = SMALL_ANSWER,
        memory_limit_mb: int | None = None,
    ) -> CodeRun:
        """Run the Python program `code` in a folder of its own.

        Args:
            files: written into that folder before; an absolute path is taken as it is.
            fetch: paths of files to bring back.
            run_timeout_s: after which the server ends the program.
            deadline_s: for the whole call, however slowly the server takes or answers it.
            answer_bytes: beyond which an answer is not read on.

        Raises:
            ServerFault: there is no answer of the server's that says how the program ended.
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
        # In a thread, like the answer: either may be tens of megabytes.
        body = await asyncio.to_thread(msgspec.json.encode, request)
        answer = await self._exchange("POST", "/run_code", body, deadline_s, answer_bytes)
        return await asyncio.to_thread(self._decoded, answer, CodeRun)

    async def close(self) -> None:
        await self._session.close()

    def _connect(self) -> ClientSession:
        # A connection per call: one that is kept open breaks when the server starts anew, and the call is lost.
        return ClientSession(
            connector=TCPConnector(limit=0, force_close=True),
            timeout=ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            cookie_jar=DummyCookieJar(),
            headers={"accept-encoding": "identity"},
            auto_decompress=False,
            trust_env=False,
        )

    async def _exchange(self, method: str, path: str, body: bytes | None, deadline_s: float, most: int) -> bytes:
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.get().request(
                    method, self.url + path, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                answer = await self._read(response, most)
        except TimeoutError as error:
            raise ServerFault(self.url, f"did not answer {path} within {deadline_s:g} s; {START}") from error
        except (ClientError, OSError) as error:
            reason = one_line(str(error)) or type(error).__name__
            raise ServerFault(self.url, f"the connection failed: {reason}; {START}") from error
        if response.status != 200:
            raise ServerFault(self.url, _refusal(response.status, path, answer))
        return answer

    async def _read(self, response: ClientResponse, most: int) -> bytes:
        answer = bytearray()
        async for data in response.content.iter_chunked(CHUNK):
            answer += data
            if len(answer) > most:
                raise ServerFault(self.url, f"its answer has more than {most} bytes, which is more than was asked for")
        return bytes(answer)

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ServerFault(self.url, f"this is not an answer of SandboxFusion: {one_line(str(error))}") from error


def _refusal(status: int, path: str, body: bytes) -> str:
    if 300 <= status < 400:
        return f"it redirects {path} (HTTP {status}); give the address that it leads to"
    if status in (404, 405):
        return f"there is no {path} (HTTP {status}); something else than SandboxFusion listens there"
    return f"HTTP {status} from {path}: {one_line(body.decode(errors='replace'), 300)}"
