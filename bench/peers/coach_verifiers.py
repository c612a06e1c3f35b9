"""The `Judge` of verifiers as it is meant to be used: a schema, and messages that are built for every call. It opens a
client for every call, by its design."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import verifiers.v1 as vf
from fan_out import Chat, read_exam, serve
from pydantic import BaseModel


class Judgement(BaseModel):
    reasoning: str
    blame: str | None
    score: float | None


class Coach(vf.Judge[Judgement]):
    schema = Judgement

    def build_messages(self, **fields: Any) -> vf.Messages:
        system, user = fields["question"]
        return [vf.SystemMessage(content=system["content"]), vf.UserMessage(content=user["content"])]


async def main() -> None:
    exam = read_exam()
    coach = Coach(vf.JudgeConfig(base_url=exam.url, api_key_var="UNUSED", model=exam.model))

    async def judge(question: Chat) -> Mapping[str, Any]:
        reply = await coach.evaluate(question=question)
        return reply.parsed.model_dump()

    await serve(judge, exam)


if __name__ == "__main__":
    asyncio.run(main())
