"""Errors of refused requests, in the formats of OpenAI's and Anthropic's clients."""

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
_ANTHROPIC_TYPE: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
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
        """JSON body of the HTTP response, for OpenAI's clients."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "code": self.code, "param": None}}

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """JSON body of the HTTP response, for Anthropic's clients. They know a prompt that is too long, which they may
        shorten, by how the message begins."""
        too_long = "prompt is too long: " if self.code == "context_length_exceeded" else ""
        error = {"type": _ANTHROPIC_TYPE[self.status], "message": f"{too_long}{self}"}
        return {"type": "error", "error": error, "request_id": None}
