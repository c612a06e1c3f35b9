"""Memory that hostile servers take from the three providers' transports, each in a process of its own."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sys
from pathlib import Path

import pytest

from mappa.testing import WireAnswer, WireServer

JSON = {"content-type": "application/json"}
MEGABYTE = 2**20
ANSWERS = {
    "endless": WireAnswer(body=b'{"so": "far"}' * 5000, trouble="endless"),
    "endless error": WireAnswer(status=503, body=b"a " * 5000, trouble="endless"),
    "endless headers": WireAnswer(trouble="headers"),
    "gzip": WireAnswer(headers={**JSON, "content-encoding": "gzip"}, body=gzip.compress(bytes(512 * MEGABYTE), 1)),
    "announced": WireAnswer(body=b" " * 32 * MEGABYTE),
    "one word": WireAnswer(body=b'"' + b"x" * 10 * MEGABYTE + b'"'),
    "many words": WireAnswer(body=b"a " * 5 * MEGABYTE),
    "many lists": WireAnswer(body=b"[" + b"[]," * 3 * MEGABYTE + b"[]]"),
    "many blocks": WireAnswer(body=b'{"content": [' + b'{"type":""},' * (10 * MEGABYTE // 12) + b'{"type":""}]}'),
    "many choices": WireAnswer(body=b'{"choices": [' + b"{}," * 3 * MEGABYTE + b"{}]}"),
    "many candidates": WireAnswer(body=b'{"candidates": [' + b"{}," * 3 * MEGABYTE + b"{}]}"),
    "much usage": WireAnswer(body=b'{"usage": [' + b"[]," * 3 * MEGABYTE + b"[]]}"),
    "much metadata": WireAnswer(body=b'{"usageMetadata": [' + b"[]," * 3 * MEGABYTE + b"[]]}"),
    "many words of usage": WireAnswer(body=b'{"usage": [' + b'"ab",' * 2 * MEGABYTE + b'""]}'),
    "many objects of usage": WireAnswer(body=b'{"usage": [' + b'{"a":1},' * MEGABYTE + b"{}]}"),
    "deep": WireAnswer(body=b"[" * 10 * MEGABYTE),
    "escaped": WireAnswer(body=b'{"error": "\\ud83d\\ude00' + b"x" * 10 * MEGABYTE + b'"}'),
    "wide": WireAnswer(body=b'{"error": {"message": "' + "😀".encode() + b"x" * 10 * MEGABYTE + b'"}}'),
}

ASKER = """
import asyncio, importlib, json, sys
from mappa_core import Message
from mappa_core.transport import CallError, Request

package, url, settings, answers = json.loads(sys.argv[1])

def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024

async def main():
    (offer,) = importlib.import_module(package).mappa_transports()
    transport = offer.build(offer.options(model="model", base_url=url, **settings))
    request = Request(messages=(Message(role="user", content="Judge."),), timeout_s=60.0)
    async def ask():
        try:
            return len((await transport.complete(request)).raw)
        except CallError as fault:
            return fault.kind
    await ask()
    found = {}
    for answer in answers:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = resident("VmRSS")
        found[answer] = await ask(), round(resident("VmHWM") - before)
    await transport.close()
    print(json.dumps(found))

asyncio.run(main())
"""
"""A process that makes a call for each answer, and prints what came of it, and how many MiB it took."""

PROVIDERS = {
    "mappa_coach_openai": ("OPENAI_API_KEY", {"api": "chat"}),
    "mappa_coach_anthropic": ("ANTHROPIC_API_KEY", {}),
    "mappa_coach_gemini": ("GEMINI_API_KEY", {}),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("package", PROVIDERS)
async def test_no_reply_takes_more_than_64_megabytes(package: str) -> None:
    variable, settings = PROVIDERS[package]
    answers = iter([WireAnswer(status=500), *ANSWERS.values()])
    async with WireServer(lambda request: next(answers)) as server:
        words = json.dumps([package, server.url, settings, list(ANSWERS)])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASKER, words,
            env={**os.environ, variable: "planted-key"}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
    found = json.loads(out)
    assert {answer: mib for answer, (_, mib) in found.items() if mib > 64} == {}
    assert {kind for kind, _ in found.values()} <= {"garbled", "overloaded"}
