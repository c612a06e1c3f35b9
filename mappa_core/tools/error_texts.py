"""Errors in the text of a tool's answer: many tools report a failure as text or JSON, in an answer that counts as one.

Only what cannot be anything else is an error: a text that begins as one, a traceback, JSON that says so. A page about
errors is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_ERROR_CHARACTERS = 300
"""Characters of an error that are quoted."""
_MAX_JSON = 200_000
_BEGINNING = re.compile(
    r"\W{0,3}(?:(?:fatal |unexpected |internal |system |tool |api |runtime |execution "
    r"|server )?errors?\b(?: *[:!(\[-]|\s+(?:\d{3}\b|"
    r"in\b|while\b|when\b|during\b|calling\b|executing\b|occurred\b|running\b|code\b))"
    r"|exceptions?:|traceback \(most recent call last\)|fatal:|panic:|failed\b(?: to\b|:)|failure:|(?:access"
    r"|permission) denied\b"
    r"|unauthorized\b|forbidden\b|(?:http(?:/[\d.]+)? ?)?[45]\d\d:? (?:client error|server error|bad request"
    r"|unauthorized|forbidden"
    r"|not found|method not allowed|request timeout|conflict|gone|unprocessable|too many requests"
    r"|internal server error|bad gateway"
    r"|service unavailable|gateway time-?out)|[a-z_.]*(?:error|exception)(?: *: |$)|(?:bash|sh|zsh): [^\n]{1,120}: "
    r"|[\w./-]{1,60}: (?:\[[^\]\n]{1,40}\] )?(?:fatal )?error:|command not found\b|no such (?:file|tool"
    r"|function|command)\b|(?:(?:the )?(?:request|operation|call|tool|command|connection) )?(?:timed out\b"
    r"|timeout (?:after|exceeded|expired|error|waiting))"
    r"|(?:command|process|program) (?:exited|failed|terminated) with (?:exit )?(?:code|status) [1-9]"
    r"|exit(?: ?code|ed with)?:? *-?[1-9]\d{0,2}\b)",
    re.IGNORECASE,
)
_TRACEBACK = re.compile(r"^traceback \(most recent call last\):", re.IGNORECASE | re.MULTILINE)
_LAST_LINE = re.compile(r"^[\w.]+(?:Error|Exception|Interrupt|Exit|Warning)\b.*", re.MULTILINE)
_STATUSES = frozenset({"error", "failed", "failure", "fail", "exception", "timeout", "denied", "unauthorized"})


def find_error_text(text: str) -> str | None:
    """What went wrong, by a tool's answer, cut to MAX_ERROR_CHARACTERS; None if it says no such thing."""
    stripped = text.strip()
    found = _read_json(stripped)
    if found is None and _TRACEBACK.search(stripped):
        found = next(reversed(_LAST_LINE.findall(stripped)), stripped)
    if found is None and _BEGINNING.match(stripped):
        found = stripped
    return None if found is None else " ".join(found.split())[:MAX_ERROR_CHARACTERS]


def _read_json(text: str) -> str | None:
    if not text.startswith("{") or len(text) > _MAX_JSON:
        return None
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _describe(answer) if isinstance(answer, Mapping) else None


def _describe(answer: Mapping[str, Any]) -> str | None:
    """What a JSON object says of its failure."""
    for key in ("error", "errors", "exception", "error_message", "errorMessage"):
        value = answer.get(key)
        if value and value is not True and value != "none":
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    message = next((answer[key] for key in ("message", "detail", "reason") if isinstance(answer.get(key), str)), "")
    if any(answer.get(key) is True for key in ("error", "is_error", "isError")):
        return message or "error"
    if any(answer.get(key) is False for key in ("success", "ok")):
        return message or "no success"
    status = answer.get("status", answer.get("status_code", answer.get("statusCode")))
    if isinstance(status, str) and status.lower() in _STATUSES:
        return f"{status}: {message}" if message else status
    if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
        return f"{status} {message}".strip()
    return None
