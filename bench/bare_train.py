"""What `mappa train --plugin mathchat` does, as one would write it by hand for this one team.

No stage, store, collector, registry, engine or checkpoint: one agent after the other answers for all rollouts by
transformers' `generate`, the programs run at once on the same tool `python`, the same rules judge every action, and one
PPO step per policy follows. Tasks, prompts, rules and all numbers are those of the recipe that is read; what else a
recipe may choose is not written here (`KNOWN` in train.py).

    mappa config --plugin mathchat --json | python bench/bare_train.py
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from mappa_core.records import Completion, Int32, Message, Scene, Step, Task, ToolLimits, ToolResult
from mappa_core.tools.parse_calls import PYTHON, parse_calls
from mappa_core.tools.workspace import FolderWorkspace
from mappa_core.workflow import Contribution
from mappa_mathchat import word_problems
from mappa_mathchat.rule_coach import RuleCoach, RuleOptions
from mappa_mathchat.workflow import CODER, MathChat, MathChatOptions, needs_another_try
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool


@dataclass(slots=True)
class Rollout:
    """The team's work on one task so far."""

    task: Task
    folder: Path
    messages: list[Message] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    contributions: list[Contribution] = field(default_factory=list)


class Learner:
    """One agent's model, and how it learns."""

    def __init__(self, folder: Path, recipe: SimpleNamespace) -> None:
        self.model, self.recipe, train = load_model(folder), recipe, recipe.train
        self.adam = torch.optim.AdamW(
            self.model.parameters(), betas=train.betas, weight_decay=train.weight_decay, fused=True
        )

    def learn(self, steps: Sequence[Step], rewards: Sequence[float], reference: Any, iteration: int) -> None:
        """One step of clipped PPO over all sampled tokens."""
        train, clip = self.recipe.train, self.recipe.loss.options
        ids, sampled = padded(steps)
        with torch.no_grad():
            old, expected = (logprobs(model, ids, sampled) for model in (self.model, reference))
        advantages = self.advantages(old - expected, sampled, rewards)
        ratio = torch.exp(logprobs(self.model, ids, sampled) - old)
        clipped = ratio.clamp(1 - clip.clip_low, 1 + clip.clip_high)
        torch.maximum(-advantages * ratio, -advantages * clipped).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), train.grad_clip)
        self.adam.param_groups[0]["lr"] = train.learning_rate * min(1.0, (iteration + 1) / train.warmup_iterations)
        self.adam.step()
        self.adam.zero_grad()

    def advantages(self, k1: Tensor, sampled: Tensor, rewards: Sequence[float]) -> Tensor:
        """REINFORCE++: returns-to-go within each row, whitened over all sampled tokens."""
        options = self.recipe.estimator.options
        returns = torch.zeros(sampled.shape, dtype=torch.float64)
        returns[sampled] = -options.kl_coef * k1.double()
        last = sampled.shape[1] - 1 - sampled.flip(1).int().argmax(dim=1)
        returns[torch.arange(len(returns)), last] += torch.tensor(rewards, dtype=torch.float64)
        for place in reversed(range(sampled.shape[1] - 1)):
            returns[:, place] += options.gamma * returns[:, place + 1]
        chosen = returns[sampled]
        return ((chosen - chosen.mean()) / chosen.var(correction=0).clamp(min=1e-8).sqrt()).float()


def load_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def padded(steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
    """Prompts and actions padded on the right (B, L), and which of the first L-1 places predict a sampled token."""
    rows = [tokens_of(step) for step in steps]
    ids = torch.zeros((len(rows), max(len(prompt) + len(action) for prompt, action in rows)), dtype=torch.long)
    sampled = torch.zeros_like(ids[:, 1:], dtype=torch.bool)
    for row, (prompt, action) in enumerate(rows):
        end = len(prompt) + len(action)
        ids[row, :end] = torch.from_numpy(np.concatenate([prompt, action]))
        sampled[row, len(prompt) - 1 : end - 1] = True
    return ids, sampled


def tokens_of(step: Step) -> tuple[Int32, Int32]:
    """Prompt and action, as sampled here."""
    prompt, action = step.completion.prompt_tokens, step.completion.tokens
    assert prompt is not None and action is not None
    return prompt, action


def logprobs(model: Any, ids: Tensor, sampled: Tensor) -> Tensor:
    """Of the sampled tokens (n,); only the places that predict one go through the head."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][sampled]
    return -cross_entropy(model.lm_head(hidden), ids[:, 1:][sampled], reduction="none")


class Team:
    """The three agents, and what they work with."""

    def __init__(self, recipe: SimpleNamespace) -> None:
        package, _, path = recipe.policies.default.model.removeprefix("package:").partition("/")
        folder, python = Path(str(files(package))) / path, recipe.tools.python
        self.recipe = recipe
        self.chat = MathChat(MathChatOptions(**vars(recipe.workflow.options)))
        self.coach = RuleCoach(RuleOptions())
        self.tool = PythonTool(PythonOptions(**vars(python.options)))
        self.limits = ToolLimits(
            wall_s=python.limits.wall_s,
            cpu_s=python.limits.cpu_s,
            memory_bytes=python.limits.memory_mb << 20,
            file_bytes=python.limits.file_mb << 20,
            output_bytes=python.limits.output_kb << 10,
            processes=python.limits.processes,
            workspace_bytes=python.limits.workspace_mb << 20,
            workspace_files=python.limits.workspace_files,
        )
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.reference = load_model(folder)
        self.learners = {agent: Learner(folder, recipe) for agent in self.chat.agents}

    async def play(self, tasks: Sequence[Task], temperature: float) -> list[Rollout]:
        """All rollouts at once, agent after agent; an agent whose program failed gets another turn."""
        with tempfile.TemporaryDirectory() as name:
            rollouts = [Rollout(task, Path(name, str(number))) for number, task in enumerate(tasks)]
            for agent in self.chat.agents:
                for rollout in rollouts:
                    opening = self.chat.build_prompt(agent, rollout.task.prompt, rollout.contributions)
                    rollout.messages = [Message(role="user", content=opening)]
                acting = rollouts
                for _ in range(self.recipe.workflow.options.coder_turns if agent == CODER else 1):
                    completions = self.sample(agent, acting, temperature)
                    await asyncio.gather(*(self.follow(agent, *pair) for pair in zip(acting, completions, strict=True)))
                    acting = [rollout for rollout in acting if needs_another_try(rollout.steps[-1].results)]
                    if not acting:
                        break
        return rollouts

    def sample(self, agent: str, rollouts: Sequence[Rollout], temperature: float) -> list[Completion]:
        """One action of `agent` in every rollout."""
        chats = [[{"role": one.role, "content": one.content} for one in rollout.messages] for rollout in rollouts]
        texts = self.tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        prompts = self.tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
        drawn = self.learners[agent].model.generate(
            input_ids=prompts.input_ids,
            attention_mask=prompts.attention_mask,
            do_sample=True,
            temperature=temperature,
            top_p=self.recipe.sampling.top_p,
            top_k=self.recipe.sampling.top_k,
            max_new_tokens=getattr(self.recipe.agents, agent).max_tokens,
        )[:, prompts.input_ids.shape[1] :]
        starts = prompts.attention_mask.argmax(dim=1).tolist()
        return [self.completion(*row) for row in zip(prompts.input_ids, starts, drawn.tolist(), strict=True)]

    def completion(self, prompt: Tensor, start: int, action: list[int]) -> Completion:
        """The tokens up to the end token, which a batch may have been drawn beyond, and their text without it."""
        end = self.tokenizer.eos_token_id
        said = action[: action.index(end)] if end in action else action
        return Completion(
            text=self.tokenizer.decode(said),
            prompt_tokens=prompt[start:].numpy(),
            tokens=np.array(action[: len(said) + 1]),
            logprobs=None,
            finish="stop" if end in action else "length",
        )

    async def follow(self, agent: str, rollout: Rollout, completion: Completion) -> None:
        """Run the programs of an action, and hand it on."""
        reply = Message(role="assistant", content=completion.text)
        calls = parse_calls(reply, (PYTHON,)) if agent == CODER else ()
        results = []
        for call in calls:
            if call.error is None:
                workspace = FolderWorkspace(rollout.folder)
                results.append(await self.tool.call(call.arguments, workspace, self.limits))
            else:
                results.append(ToolResult(tool=PYTHON, status="error", stderr=call.error))
        step = Step(
            id="",
            agent=agent,
            turn=0,
            position=len(rollout.steps),
            policy=agent,
            messages=(),
            reply=reply,
            completion=completion,
            results=tuple(results),
        )
        printed = self.chat.templates.render_results(calls, results)
        rollout.messages += [reply, Message(role="user", content=printed)]
        rollout.steps.append(step)
        rollout.contributions.append(Contribution(agent=agent, text=completion.text, results=printed))

    async def reward(self, rollout: Rollout, step: Step) -> float | None:
        """The coach's points in the range that the recipe gives them; None where it abstains."""
        shown = step.agent in self.recipe.coach.reference_for
        task = rollout.task if shown else replace(rollout.task, reference=None)
        role, earlier = self.chat.agents[step.agent], tuple(rollout.steps[: step.position])
        verdict = await self.coach.score(Scene(task=task, role=role, step=step, earlier=earlier))
        scale = self.recipe.shapers[0].options
        slope = (scale.high - scale.low) / (scale.source_high - scale.source_low)
        return None if verdict.score is None else scale.low + (verdict.score - scale.source_low) * slope

    async def learn(self, rollouts: Sequence[Rollout], iteration: int) -> None:
        for agent, learner in self.learners.items():
            pairs = [(rollout, step) for rollout in rollouts for step in rollout.steps if step.agent == agent]
            judged = [(step, await self.reward(rollout, step)) for rollout, step in pairs]
            steps, rewards = zip(*(pair for pair in judged if pair[1] is not None), strict=True)
            learner.learn(steps, rewards, self.reference, iteration)

    async def accuracy(self, tasks: Sequence[Task]) -> float:
        rollouts = await self.play(tasks, self.recipe.eval.temperature)
        return float(np.mean([await self.chat.grade(one.steps[-1].reply.content, one.task) for one in rollouts]))


async def run(recipe: SimpleNamespace) -> None:
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)  # As the engine `local` computes a model of this size.
    source = word_problems.WordProblems(word_problems.WordOptions(**vars(recipe.tasks.options)))
    tasks, held_out = source.load("train"), source.load("eval")[: recipe.eval.problems]
    order = np.random.default_rng([recipe.seed, 0]).permutation(len(tasks))
    team, prompts = Team(recipe), recipe.train.prompts
    before = await team.accuracy(held_out)
    for iteration in range(recipe.train.iterations):
        chosen = order[iteration * prompts : (iteration + 1) * prompts]
        rollouts = [tasks[index] for index in chosen for _ in range(recipe.train.samples)]
        await team.learn(await team.play(rollouts, recipe.sampling.temperature), iteration)
    after = await team.accuracy(held_out)
    await team.tool.close()
    print(json.dumps({"before": before, "after": after}))


def main() -> None:
    asyncio.run(run(json.load(sys.stdin, object_hook=lambda values: SimpleNamespace(**values)).config))


if __name__ == "__main__":
    main()
