"""What a request is refused with, as OpenAI's clients read it."""

from __future__ import annotations

from typing import Any, Literal

FaultCode = Literal[
    "invalid_api_key", "session_ended", "model_not_found", "unknown_url", "invalid_request", "unsupported",
    "context_length_exceeded", "action_failed",
]  # fmt: skip

_STATUS: dict[FaultCode, int] = {
    "invalid_api_key": 401,
    "session_ended": 403,
    "model_not_found": 404,
    "unknown_url": 404,
    "invalid_request": 400,
    "unsupported": 400,
    "context_length_exceeded": 400,
    "action_failed": 500,
}
# Clients would send the same again by themselves, as another action.
NOT_AGAIN = {"x-should-retry": "false"}


class RequestFault(Exception):
    """A request that becomes no action. `invalid_request` cannot be read, `unsupported` asks for what would make the
    reply another than the sampler's; `action_failed` ends the trajectory, whose record says why."""

    def __init__(self, code: FaultCode, message: str) -> None:
        super().__init__(message)
        self.code: FaultCode = code

    @property
    def status(self) -> int:
        """Of the HTTP answer."""
        return _STATUS[self.code]

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the HTTP answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "code": self.code, "param": None}}
