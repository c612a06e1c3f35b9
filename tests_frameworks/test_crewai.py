"""CrewAI: a crew of two agents, a task each."""

from __future__ import annotations

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

import crewai


def member(session, name: str) -> crewai.Agent:
    # Names of models that CrewAI does not know need `custom_openai`.
    model = crewai.LLM(model=name, custom_openai=True, base_url=session.base_url, api_key=session.api_key)
    return crewai.Agent(role=name, goal="Plan.", backstory="You plan.", llm=model)


def solve(session) -> str:
    agents = [member(session, name) for name in ("planner", "reviser")]
    tasks = [crewai.Task(description=session.task.prompt, expected_output="A plan.", agent=agent) for agent in agents]
    return crewai.Crew(agents=agents, tasks=tasks).kickoff().raw


def test_a_crew_of_two_agents_is_trained(train, hold):
    # A crew's prompts are far from what the small model was warmed up on: at 1.0 the planner always says the same.
    hold(train(solve, "sampling.temperature=2.0"), refuses="Invalid response from LLM call - None or empty.")
