"""The form for a label of guilt: the one thing that the viewer writes into a run.

A foreign page that a browser shows cannot write: the token's cookie is sent with the viewer's own pages alone
(`SameSite=Strict`), the origin has to be this server's, and the form holds a key that only its pages know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from secrets import compare_digest, token_urlsafe
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mappa.look.labelling import (
    MAX_REASON,
    build_label,
    check_labeller,
    plays_to_label,
    store_label,
    whom_to_blame,
)
from mappa.look.view.web.auth import is_from_own_page
from mappa.runs import RunReader
from mappa_core import ConfigError, RunError, Trajectory
from mappa_core.records import Label

FORM_TYPE = "application/x-www-form-urlencoded"
MAX_BODY = 200_000
"""Bytes of a form: the longest reason, of characters of four bytes that are escaped as twelve, and the rest."""
MAX_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelForm:
    """Shows and keeps the labels of `labeller`. `key` is in every form, and another one in every process."""

    labeller: str
    key: str = field(default_factory=lambda: token_urlsafe(24))

    def build(self, reader: RunReader, play: Trajectory) -> dict[str, Any]:
        """What the form on a play shows: what may be said, what was said, and which play is next."""
        left = [row.id for row in plays_to_label(reader, self.labeller)]
        said = next((label for label in reader.labels(play.id) if self._is_own(label)), None)
        numbers = {step.id: number for number, step in enumerate(play.steps, start=1)}
        return {
            "labeller": self.labeller,
            "key": self.key,
            "names": whom_to_blame(play),
            "who": None if said is None else said.agent,
            "step": None if said is None or said.step is None else numbers[said.step],
            "why": "" if said is None else said.reason,
            "max_reason": MAX_REASON,
            "next": next((name for name in left if name != play.id), None),
            "left": len(left),
        }

    def _is_own(self, label: Label) -> bool:
        return label.kind == "guilt" and label.labeller == self.labeller

    async def keep(self, folder: Path, request: Request) -> Label:
        """Keep the label of a form. Raises HTTPException for a request that is not from one of the viewer's forms or
        says what cannot be, and RunError for a run that is being written."""
        fields = await _read_form(request)
        if not is_from_own_page(request) or not compare_digest(fields.get("key", "").encode(), self.key.encode()):
            raise HTTPException(403, "This did not come from a page of this server: open the play again.")
        return await run_in_threadpool(self._store, folder, fields)

    def _store(self, folder: Path, fields: dict[str, str]) -> Label:
        try:
            with RunReader(folder) as reader:
                labeller = check_labeller(reader, self.labeller)
                play = _find_play(reader, fields.get("id", ""))
            step = _read_step(fields.get("step", ""))
            label = build_label(play, labeller, fields.get("who", ""), step, fields.get("why", "").strip())
        except ConfigError as problem:
            raise HTTPException(400, str(problem)) from None
        store_label(folder, label)
        return label


async def _read_form(request: Request) -> dict[str, str]:
    """The fields of a form of this page's kind, of bounded size."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != FORM_TYPE:
        raise HTTPException(415, "This is not a form.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise HTTPException(413, "The form is too long.")
    try:
        # Browsers end lines of a text area with CR LF.
        text = body.decode("utf-8")
        return {name: value.replace("\r\n", "\n") for name, value in parse_qsl(text, keep_blank_values=True)}
    except ValueError:
        raise HTTPException(400, "The form is not UTF-8.") from None


def _find_play(reader: RunReader, identity: str) -> Trajectory:
    try:
        return reader.trajectory(identity)
    except RunError:
        raise HTTPException(404, f"There is no trajectory {identity}.") from None


def _read_step(text: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        raise ConfigError(f"{text[:MAX_DIGITS]!r} is not the number of a step")
    return int(text)
