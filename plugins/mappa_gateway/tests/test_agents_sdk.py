"""An agent of the OpenAI Agents SDK, as its users write them. Its pins are not ours: `make test-trackers` has it."""

from __future__ import annotations

import openai
import pytest

from mappa_core import Message, ToolCall

agents = pytest.importorskip("agents", reason="the OpenAI Agents SDK is in the environment of `make test-trackers`")
agents.set_tracing_disabled(True)

CALL = 'I look.<tool_call>{"name": "search", "arguments": {"query": "2+2"}}</tool_call>'


@agents.function_tool
def search(query: str) -> str:
    """Look it up."""
    return f"{query} is 4"


def solver(session) -> tuple[agents.Agent, agents.RunConfig]:
    client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
    provider = agents.OpenAIProvider(openai_client=client)
    return (
        agents.Agent(name="solver", instructions="Be brief.", tools=[search], model="gpt-4o"),
        agents.RunConfig(model_provider=provider),
    )


async def whole(session):
    agent, config = solver(session)
    return (await agents.Runner.run(agent, session.task.prompt, run_config=config)).final_output


async def streamed(session):
    agent, config = solver(session)
    result = agents.Runner.run_streamed(agent, session.task.prompt, run_config=config)
    async for _ in result.stream_events():
        pass
    return result.final_output


@pytest.mark.parametrize("function", [whole, streamed])
async def test_loop_and_tools_of_the_agents_sdk_run_unchanged(theatre, function):
    trajectory = await theatre.one(
        theatre.workflow(function), lambda prompt, sampling: "4" if "<tool>" in prompt else CALL
    )
    assert (trajectory.error, trajectory.outcome["correct"]) == (None, 1.0)
    first, second = trajectory.steps
    assert [tool.name for tool in first.own_tools] == ["search"]
    asked = ToolCall(name="search", arguments={"query": "2+2"}, id="call_000_0")
    assert second.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="what is 2+2?"),
        Message(role="assistant", content="I look.", tool_calls=(asked,)),
        Message(role="tool", content="2+2 is 4", tool_call_id="call_000_0"),
    )
