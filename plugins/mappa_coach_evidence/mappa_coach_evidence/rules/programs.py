"""Rules about executions: programs and tool calls that fail, that fail again, and files that are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mappa_coach_evidence.findings import Finding
from mappa_coach_evidence.text import code_blocks, last_line, squeeze, without_code
from mappa_coach_evidence.transcript import Transcript

_MISSING = re.compile(r"(?:FileNotFoundError|No such file or directory)[^\n]*?['\"]([^'\"\n]+)['\"]")
_DELIVERY = re.compile(r"\b(?:saved|written|wrote|stored|exported|created)\b", re.IGNORECASE)


def broken_contracts(transcript: Transcript) -> Iterator[Finding]:
    """Files that an agent owes are missing or broken."""
    for place, breach in transcript.breaches:
        if breach.kind in ("missing_output", "broken_output"):
            detail = f": {breach.detail}" if breach.detail else ""
            yield Finding(place=place, reason=f"{breach.path} is {breach.kind.partition('_')[0]}{detail}.")


def cut_off_replies(transcript: Transcript) -> Iterator[Finding]:
    """A reply ends at its token limit."""
    for place in transcript.cut_off:
        yield Finding(place=place, reason="The reply was cut off at its token limit.")


def missing_files(transcript: Transcript) -> Iterator[Finding]:
    """A file that an earlier action says it delivered is not there when a program opens it."""
    for number, entry in enumerate(transcript.entries):
        if not (entry.is_output and entry.failed and (missing := _MISSING.search(entry.text))):
            continue
        name = missing[1].rsplit("/", 1)[-1]
        for earlier in transcript.entries[:number]:
            prose = without_code(earlier.text)
            if earlier.place is not None and not earlier.is_output and name in prose and _DELIVERY.search(prose):
                yield Finding(
                    place=earlier.place, reason=f"It says that {name} is there, and a program did not find it."
                )
                break


def failed_programs(transcript: Transcript) -> Iterator[Finding]:
    """A program or a tool call failed."""
    for entry in transcript.outputs:
        if entry.failed and entry.author is not None:
            yield Finding(place=entry.author, reason=f"Its program failed: {last_line(entry.text) or 'no output'}")


def repeated_failures(transcript: Transcript) -> Iterator[Finding]:
    """The same program is run again after it failed."""
    failed = {entry.author for entry in transcript.outputs if entry.failed}
    seen: set[str] = set()
    for entry in transcript.spoken:
        for block in code_blocks(entry.text):
            key = squeeze(block.code)
            if key in seen and entry.place is not None:
                yield Finding(place=entry.place, reason="It runs a program again that had failed, unchanged.")
            if entry.place in failed:
                seen.add(key)


def unchecked_programs(transcript: Transcript) -> Iterator[Finding]:
    """The answer rests on the first program, which ran and which nothing else confirms."""
    for entry in transcript.outputs[:1]:
        if entry.author is not None:
            yield Finding(place=entry.author, reason="The answer rests on its program, which nothing confirms.")


def unrepaired_failures(transcript: Transcript) -> Iterator[Finding]:
    """An action goes on in words alone where the last program failed."""
    ran = {entry.author for entry in transcript.outputs}
    spoken = {entry.place for entry in transcript.spoken}
    failed = False
    for entry in transcript.entries:
        if entry.is_output:
            failed = entry.failed if entry.author is not None else failed
        elif failed and entry.place in spoken and entry.place not in ran and entry.place is not None:
            yield Finding(place=entry.place, reason="The last program failed, and it goes on without running another.")
