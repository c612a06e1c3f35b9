"""Errors of refused requests, in the format of OpenAI's clients."""

from __future__ import annotations

from typing import Any, Literal

FaultCode = Literal[
    "invalid_api_key", "session_ended", "model_not_found", "unknown_url", "invalid_request", "unsupported",
    "context_length_exceeded", "too_large", "action_failed",
]  # fmt: skip

_STATUS: dict[FaultCode, int] = {
    "invalid_api_key": 401,
    "session_ended": 403,
    "model_not_found": 404,
    "unknown_url": 404,
    "invalid_request": 400,
    "unsupported": 400,
    "context_length_exceeded": 400,
    "too_large": 413,
    "action_failed": 500,
}
# Otherwise clients would retry by themselves, as another action.
NO_RETRY_HEADERS = {"x-should-retry": "false"}


class RequestFault(Exception):
    """A request that does not become an action. `invalid_request` cannot be parsed, `unsupported` asks for a reply that
    the sampler would not give; `action_failed` ends the trajectory, whose record has the reason."""

    def __init__(self, code: FaultCode, message: str) -> None:
        super().__init__(message)
        self.code: FaultCode = code

    @property
    def status(self) -> int:
        """Status code of the HTTP response."""
        return _STATUS[self.code]

    @property
    def body(self) -> dict[str, Any]:
        """JSON body of the HTTP response."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "code": self.code, "param": None}}
