"""The OpenAI Agents SDK: two agents after each other, by chat completions and by Responses, and one that hands off."""

from __future__ import annotations

import agents
import openai
import pytest

from mappa.runs import RunReader
from mappa_core.errors import GuardStop

agents.set_tracing_disabled(True)


def config_of(session, *, use_responses: bool) -> agents.RunConfig:
    client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
    return agents.RunConfig(model_provider=agents.OpenAIProvider(openai_client=client, use_responses=use_responses))


async def by_chat(session) -> str:
    config, said = config_of(session, use_responses=False), session.task.prompt
    for name in ("planner", "reviser"):
        agent = agents.Agent(name=name, instructions="You plan.", model=name)
        said = (await agents.Runner.run(agent, said or session.task.prompt, run_config=config)).final_output
    return said


def test_two_agents_are_trained(train, hold):
    hold(train(by_chat))


def team_with_hand_off() -> agents.Agent:
    """As the SDK's own pages write it: the first agent may hand off to the second."""
    second = agents.Agent(name="reviser", instructions="You plan.", model="reviser")
    return agents.Agent(name="planner", instructions="You plan.", model="planner", handoffs=[second])


async def hand_off_by_chat(session) -> str:
    config = config_of(session, use_responses=False)
    return (await agents.Runner.run(team_with_hand_off(), session.task.prompt, run_config=config)).final_output


async def hand_off_by_responses(session) -> str:
    config = config_of(session, use_responses=True)
    return (await agents.Runner.run(team_with_hand_off(), session.task.prompt, run_config=config)).final_output


CUT = ("agents.planner.max_tokens=2", "agents.reviser.max_tokens=2")
"""Two tokens are never enough: every reply is cut."""


def test_by_chat_completions_a_reply_that_was_cut_is_an_action_like_others(train):
    with RunReader(train(hand_off_by_chat, *CUT).folder) as reader:
        found = [reader.trajectory(row.id) for row in reader.trajectories]
    assert [one.error for one in found] == [None] * len(found) and len(found) == 12
    assert all(step.truncated for one in found for step in one.steps)


def test_by_responses_the_sdk_gives_up_and_a_run_in_which_all_fail_ends_with_one_message(train):
    """The SDK raises where a response is incomplete. An evaluation in which all fail is no traceback."""
    with pytest.raises(GuardStop, match=r"all 2 trajectories failed in the workflow.*ModelBehaviorError"):
        train(hand_off_by_responses, *CUT)
