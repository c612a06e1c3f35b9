"""litellm's `acompletion`, which keeps one client, on aiohttp, by itself; no retries, no callbacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import litellm
from fan_out import Chat, read_exam, serve


async def main() -> None:
    exam = read_exam()

    async def judge(question: Chat) -> Mapping[str, Any]:
        reply = await litellm.acompletion(
            model=f"openai/{exam.model}",
            messages=question,
            api_base=exam.url,
            api_key="none",
            max_retries=0,
            **exam.extra,
        )
        return json.loads(reply.choices[0].message.content)

    await serve(judge, exam)


if __name__ == "__main__":
    asyncio.run(main())
