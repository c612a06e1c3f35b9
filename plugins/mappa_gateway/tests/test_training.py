"""An agent with nothing but a provider's client is trained: model, sampler, learner and store are the real ones."""

from __future__ import annotations

import operator
import re
from pathlib import Path

import anthropic
import numpy as np
import openai
import pytest

from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.testing import load_plugins
from mappa_core import hookimpl
from mappa_engine.local import LocalEngine
from mappa_engine.model_info import read_model_info

CLIENT = openai.OpenAI(base_url="http://127.0.0.1:1/v1", api_key="none")
ANTHROPIC = anthropic.Anthropic(base_url="http://127.0.0.1:1", auth_token="none")
STOP = "\nsub"
STEP = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv}
heard: dict[str, tuple[list[int], list[float]]] = {}
"""Tokens and log-probabilities by the name of the reply, as the agent was told them."""
said: dict[str, tuple[str, str | None]] = {}
"""Text and stop sequence by action, as the agent was told them."""


def solve(session):
    """Ask for a plan until one can be computed, three times at most."""
    client = CLIENT.with_options(base_url=session.base_url, api_key=session.api_key)
    messages = [{"role": "user", "content": f"Plan: {session.task.prompt}"}]
    for _ in range(3):
        reply = client.chat.completions.create(model="planner", messages=messages, logprobs=True, temperature=0)
        told = reply.choices[0].logprobs.content
        heard[reply.id] = [int(one.token.removeprefix("token_id:")) for one in told], [one.logprob for one in told]
        value = computed(reply.choices[0].message.content)
        if value is not None:
            return str(value)
    return None


def solve_by_messages(session):
    """The same by Anthropic's client, with a stop sequence that some plans hold."""
    client = ANTHROPIC.with_options(base_url=session.root_url, auth_token=session.api_key)
    messages = [{"role": "user", "content": f"Plan: {session.task.prompt}"}]
    for _ in range(3):
        reply = client.messages.create(model="planner", max_tokens=1, messages=messages, stop_sequences=[STOP])
        said[reply.id.removeprefix("msg_")] = reply.content[0].text, reply.stop_sequence
        value = computed(reply.content[0].text)
        if value is not None:
            return str(value)
    return None


def computed(plan):
    lines = [re.fullmatch(r"(start|add|sub|mul|div) (\d{1,6})", line) for line in plan.strip().splitlines()]
    if not lines or not all(lines) or lines[0][1] != "start":
        return None
    total = int(lines[0][2])
    for line in lines[1:]:
        if line[1] == "start" or (line[1], int(line[2])) == ("div", 0):
            return None
        total = STEP[line[1]](total, int(line[2]))
    return total


RECIPE = f"""
tasks: {{use: words, options: {{train: 4096, eval: 256}}}}
workflow:
  use: gateway
  options:
    agents: {{problem_solver: {{brief: Plans how to solve the problem.}}}}
    function: {__name__}:FUNCTION
agents: {{problem_solver: {{max_tokens: 40}}}}
policies: {{default: {{model: "package:mappa_mathchat/models/tiny"}}}}
coach: {{use: mathchat-rules, reference_for: [problem_solver]}}
shapers: [{{use: scale}}]
estimator: {{use: reinforce_plus_plus, options: {{kl_coef: 0.01, normalize: policy}}}}
train: {{iterations: 1, prompts: 4, samples: 2, learning_rate: 5.0e-4, correction: {{kind: none}}}}
eval: {{problems: 4}}
engine: {{use: local, options: {{deterministic: true}}}}
"""


class Outside:
    """A plugin that is nothing but a recipe."""

    def __init__(self, folder: Path, function: str) -> None:
        self._recipe = folder / "tiny.yaml"
        self._recipe.write_text(RECIPE.replace("FUNCTION", function))

    @hookimpl
    def mappa_recipes(self):
        return {"tiny": self._recipe}


def steps_of(folder: Path, split: str):
    with RunReader(folder) as reader:
        return [step for row in reader.trajectories.where(split=split) for step in reader.trajectory(row.id).steps]


@pytest.mark.parametrize("function", ["solve", "solve_by_messages"])
def test_experience_holds_exactly_the_sampled_and_returned_tokens(tmp_path, monkeypatch, function):
    learned, update = [], LocalEngine.update

    async def noting(self, experience, advantages, loss, progress):
        learned.append(experience)
        return await update(self, experience, advantages, loss, progress)

    monkeypatch.setattr(LocalEngine, "update", noting)
    heard.clear()
    said.clear()
    registry = load_plugins(
        only=("look", "engine", "gateway", "mathchat", "sandbox"), modules={"outside": Outside(tmp_path, function)}
    )
    folder = Run.from_recipe("outside/tiny", f"run.root={tmp_path}", registry=registry).train().folder
    steps = {step.id: step for step in steps_of(folder, "train")}
    (rows,) = learned
    assert len(rows.steps) == len(steps) >= 8 and set(rows.steps) == set(steps)
    for row, name in enumerate(rows.steps):
        here = slice(rows.offsets[row], rows.offsets[row + 1])
        shown = slice(rows.prompt_offsets[row], rows.prompt_offsets[row + 1])
        sampled = steps[name].completion
        if function == "solve":
            assert heard[f"chatcmpl-{name}"] == (sampled.tokens.tolist(), sampled.logprobs.tolist())
        else:
            assert said[name] == (sampled.text, sampled.stop_text)
        assert rows.tokens[here].tolist() == sampled.tokens.tolist()
        assert rows.logprobs[here].tolist() == sampled.logprobs.tolist()
        assert rows.prompt_tokens[shown].tolist() == sampled.prompt_tokens.tolist()
        # The learner's own log-probabilities of the same tokens.
        assert np.allclose(rows.old_logprobs[here], sampled.logprobs, atol=1e-4)
        assert sampled.temperature == 1.0, "the recipe says how actions are sampled, not the request"
    stopped = [step.completion for step in steps.values() if step.completion.stop_text is not None]
    assert bool(stopped) == (function == "solve_by_messages")
    decode = read_model_info("package:mappa_mathchat/models/tiny").chat.decode
    for sampled in stopped:
        assert decode(sampled.tokens.tolist()) == sampled.text + STOP
    with RunReader(folder) as reader:
        (report,) = reader.iterations
    assert report.policies["problem_solver"]["grad_norm"] > 0.0
