"""The provider of `bench/coach.py`: every chat completion is a verdict and takes 200 ms.

Below `/v1` all goes well. Below `/faulty/v1` one request in a hundred is refused with status 429, by turns with
`retry-after: 0` and without the header, and one in a hundred is answered with status 200 and no verdict, by turns with
JSON that breaks off and with a reply in prose. Says its port in one line, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys

from aiohttp import web

LATENCY_S = 0.2
VERDICT = {
    "reasoning": "The plan names every quantity and computes them in an order that works. The remainder is taken anew "
    "after the sponsor's boxes came in, which is where most go wrong. It could have checked a small case by hand.",
    "blame": "nobody",
    "score": 8.5,
}


def body(content: str) -> bytes:
    """A chat completion that says `content`."""
    message = {"role": "assistant", "content": content, "refusal": None}
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "judge",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": 3000,
            "completion_tokens": 90,
            "total_tokens": 3090,
            "prompt_tokens_details": {"cached_tokens": 1500},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    return json.dumps(completion).encode()


GOOD = body(json.dumps(VERDICT))
PROSE = body("Well done: I would give this a solid eight and a half.")
REFUSAL = json.dumps({"error": {"message": "Too many requests", "type": "requests", "code": "rate_limit_exceeded"}})
requests = itertools.count(1)


async def well(request: web.Request) -> web.Response:
    await request.read()
    await asyncio.sleep(LATENCY_S)
    return web.Response(body=GOOD, content_type="application/json")


async def faulty(request: web.Request) -> web.Response:
    answer = await well(request)
    place = next(requests) % 200
    if place in (25, 125):
        headers = {"retry-after": "0"} if place == 25 else {}
        return web.Response(status=429, text=REFUSAL, content_type="application/json", headers=headers)
    if place in (75, 175):
        answer.body = GOOD[: len(GOOD) // 2] if place == 75 else PROSE
    return answer


async def serve() -> None:
    application = web.Application()
    application.add_routes([web.post("/v1/chat/completions", well), web.post("/faulty/v1/chat/completions", faulty)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve())
