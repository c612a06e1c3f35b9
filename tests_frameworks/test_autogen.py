"""AutoGen: a round of two assistants."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": ModelFamily.UNKNOWN,
    "structured_output": False,
}


def assistant(session, name: str) -> AssistantAgent:
    client = OpenAIChatCompletionClient(model=name, base_url=session.base_url, api_key=session.api_key, model_info=INFO)
    return AssistantAgent(name, model_client=client, system_message="You plan.")


async def solve(session) -> str:
    team = RoundRobinGroupChat(
        [assistant(session, "planner"), assistant(session, "reviser")],
        termination_condition=MaxMessageTermination(3),
    )
    return (await team.run(task=session.task.prompt)).messages[-1].to_text()


def test_a_round_of_two_assistants_is_trained(train, hold):
    hold(train(solve))
