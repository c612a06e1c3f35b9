"""The workflow `gateway` keeps the contract of workflows, with an agent that survives what models write."""

from __future__ import annotations

import openai
import pytest

from mappa.testing import WorkflowContract
from mappa_core import Task
from mappa_gateway.options import ExternalAgent, GatewayOptions
from mappa_gateway.workflow import GatewayWorkflow

CLIENT = openai.OpenAI(base_url="http://127.0.0.1:1/v1", api_key="none")


def plan_then_answer(session):
    client = CLIENT.with_options(base_url=session.base_url, api_key=session.api_key)
    messages = [{"role": "user", "content": session.task.prompt}]
    plan = client.chat.completions.create(model="planner", messages=messages).choices[0].message
    messages += [plan.model_dump(exclude_none=True), {"role": "user", "content": "now answer"}]
    return client.chat.completions.create(model="writer", messages=messages).choices[0].message.content


class TestGateway(WorkflowContract):
    task = Task(id="t", prompt="2+2?", reference="4")
    replies = ("add them", "4")

    @pytest.fixture(autouse=True)
    async def _closed(self):
        self.made = []
        yield
        for workflow in self.made:
            await workflow.close()

    def workflow(self):
        agents = {"planner": ExternalAgent(brief="plans"), "writer": ExternalAgent(brief="writes")}
        self.made.append(GatewayWorkflow(GatewayOptions(agents=agents, function=f"{__name__}:plan_then_answer")))
        return self.made[-1]
