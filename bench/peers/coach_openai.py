"""The bare official SDK: one shared client on aiohttp, no retries, questions prepared beforehand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from fan_out import Chat, read_exam, serve
from openai import AsyncOpenAI, DefaultAioHttpClient


async def main() -> None:
    exam = read_exam()
    async with AsyncOpenAI(
        base_url=exam.url, api_key="none", max_retries=0, http_client=DefaultAioHttpClient()
    ) as client:

        async def judge(question: Chat) -> Mapping[str, Any]:
            messages: Any = question
            reply = await client.chat.completions.create(model=exam.model, messages=messages, **exam.extra)
            return json.loads(reply.choices[0].message.content or "")

        await serve(judge, exam)


if __name__ == "__main__":
    asyncio.run(main())
