"""A tiny model of MathChat that reads reasons: the one that is shipped, shown what a better reply to a reason is.

The shipped model has never read a coach's reason, so it cannot teach itself by one. This one saw, beside the team's
dialogues with all their planted faults, the same prompts with the reason behind them that the rule coach gave an
earlier reply, and a reply that the coach scores higher. Without a reason it acts as the shipped one does.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from random import Random

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from mappa_core import MAX_SCORE, Completion, Message, Scene, Step, ToolResult, Verdict
from mappa_core.workflow import Contribution
from mappa_engine.tiny.supervised_trainer import Encoded, Imitator
from mappa_mathchat.plans import Plan
from mappa_mathchat.rule_coach import RuleCoach, RuleOptions
from mappa_mathchat.tiny.demonstrations import PYTHON_CALL, Demonstrations, FaultProbabilities, run_program
from mappa_mathchat.tiny.warm_start import WARM_START
from mappa_mathchat.word_problems import WordProblem, generate_problems
from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER, MathChat, MathChatOptions, needs_another_try

SHIPPED = Path(__file__).parents[2] / "plugins" / "mappa_mathchat" / "mappa_mathchat" / "models" / "tiny"
TEMPLATE = "\nReason: {reason}"
"""What stands between a prompt and the reason that its reader is shown, here and in training."""
STEPS, QUICK_STEPS = 400, 10
LEARNING_RATE = 1e-3
WARMUP_STEPS = 50
TRIES = 50
"""Replies among which one is looked for that the coach scores higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A prompt, the coach's reason for its score of a reply to it, and a reply that it scores higher: the same where
    it was right, or no better one was found."""

    agent: str
    messages: tuple[Message, ...]
    reason: str
    reply: str

    def conversation(self, reason: str | None = None) -> list[Message]:
        """The dialogue in which a reason, its own one or another, stands behind the prompt."""
        *before, last = self.messages
        shown = TEMPLATE.replace("{reason}", self.reason if reason is None else reason)
        return [*before, replace(last, content=last.content + shown), _said(self.reply)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A reply and what its program gave."""

    text: str
    ran: tuple[ToolResult, ...] = ()


class Lessons(Demonstrations):
    """The team's dialogues and a lesson from each action."""

    def __init__(self, rng: Random) -> None:
        super().__init__(MathChat(MathChatOptions(prompts="tiny")), FaultProbabilities(), rng)
        self._coach = RuleCoach(RuleOptions())
        self._loop = asyncio.new_event_loop()

    def conversations(self) -> Iterator[list[Message]]:
        """Generate dialogues of the team and as many lessons, without end."""
        lessons = self.lessons()
        for conversation in super().conversations():
            yield conversation
            yield next(lessons).conversation()

    def lessons(self) -> Iterator[Lesson]:
        """Generate lessons without end."""
        for problem in _shown_problems(self._rng):
            yield from self._lessons(problem)

    def _lessons(self, problem: WordProblem) -> Iterator[Lesson]:
        plan = self._plan(problem)
        solver = Attempt(text=plan.text)
        opening = self._opening(SOLVER, problem, [])
        yield self._lesson(problem, SOLVER, (opening,), (), solver, lambda: Attempt(text=self._plan(problem).text))

        earlier = [Contribution(agent=SOLVER, text=plan.text)]
        steps = [_step(SOLVER, solver)]
        coding: tuple[Message, ...] = (self._opening(CODER, problem, earlier),)
        for silent in (self.probabilities.silent, self.probabilities.silent_again):
            tried = self._attempt(plan, silent)
            again = partial(self._attempt, plan, silent)
            yield self._lesson(problem, CODER, coding, steps, tried, again)
            shown = self._workflow.templates.render_results([PYTHON_CALL], list(tried.ran))
            coding = (*coding, _said(tried.text), Message(role="user", content=shown))
            earlier.append(Contribution(agent=CODER, text=tried.text, results=shown))
            steps.append(_step(CODER, tried))
            if not needs_another_try(list(tried.ran)):
                break

        def box() -> Attempt:
            return Attempt(text=self._answer(plan, tried.ran[0].stdout.strip()))

        yield self._lesson(problem, VERIFIER, (self._opening(VERIFIER, problem, earlier),), steps, box(), box)

    def _attempt(self, plan: Plan, silent: float) -> Attempt:
        code = self._code(plan, silent)
        return Attempt(text=f"```python\n{code}\n```", ran=(run_program(code),))

    def _lesson(
        self,
        problem: WordProblem,
        agent: str,
        messages: tuple[Message, ...],
        earlier: Sequence[Step],
        first: Attempt,
        again: Callable[[], Attempt],
    ) -> Lesson:
        def judge(attempt: Attempt) -> Verdict:
            scene = Scene(
                task=problem.task(),
                role=self._workflow.agents[agent],
                step=_step(agent, attempt),
                earlier=tuple(earlier),
            )
            return self._loop.run_until_complete(self._coach.score(scene))

        said = judge(first)
        better = first
        if said.score is not None and said.score < MAX_SCORE:
            tries = (again() for _ in range(TRIES))
            better = next((one for one in tries if (judge(one).score or 0.0) > said.score), first)
        return Lesson(agent=agent, messages=messages, reason=said.reasoning, reply=better.text)


def _shown_problems(rng: Random) -> Iterator[WordProblem]:
    """Problems that are not held out."""
    return (problem for problem in generate_problems(rng) if not problem.held_out)


def _said(text: str) -> Message:
    return Message(role="assistant", content=text)


def _step(agent: str, attempt: Attempt) -> Step:
    """An action as the coach is shown it."""
    return Step(
        id=agent,
        agent=agent,
        turn=0,
        position=0,
        policy=agent,
        messages=(),
        reply=_said(attempt.text),
        completion=Completion(
            text=attempt.text, prompt_tokens=None, tokens=np.zeros(1, np.int32), logprobs=None, finish="stop"
        ),
        calls=tuple(PYTHON_CALL for _ in attempt.ran),
        results=attempt.ran,
    )


def load_model(folder: Path) -> Imitator:
    """Load a tiny model of MathChat, to be trained further or measured."""
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = Imitator(tokens, window=WARM_START.window, seed=0, shape=WARM_START.shape)
    missing, unexpected = model.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert missing == ["lm_head.weight"] and not unexpected  # tied to the embedding, so it is in no file
    return model


def make_reading_model(folder: Path, *, steps: int, report: Callable[[str], None]) -> None:
    """Train the shipped model on dialogues and lessons, and write it to `folder`."""
    model = load_model(SHIPPED)
    rows = map(model.encode, Lessons(Random("reading")).conversations())
    size = WARM_START.conversations_per_step
    loss = model.imitate(
        (list(islice(rows, size)) for _ in range(steps)),
        learning_rate=LEARNING_RATE,
        learning_rate_factor=lambda step: (
            min(1.0, (step + 1) / WARMUP_STEPS) * (1 + math.cos(math.pi * step / steps)) / 2
        ),
        report=report,
    )
    model.save(folder, {"steps": steps, "last_loss": round(loss, 4)}, package="mappa-mathchat", half=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Nats per token by which better replies surprise a model: after the reasons that they answer (`own`), and after
    what was said of another action of the same agent (`other`)."""

    own: float
    other: float


def measure_reading(folder: Path, *, lessons: int = 200) -> Reading:
    """Measure, on lessons drawn for it, whether a model reads reasons, or only sees that there is one."""
    model = load_model(folder)
    drawn = sorted(islice(Lessons(Random("measured")).lessons(), lessons), key=lambda one: one.agent)
    others = [
        one.reason
        for _, group in groupby(drawn, key=lambda one: one.agent)
        for own in [list(group)]
        for one in own[1:] + own[:1]
    ]
    return Reading(
        own=_surprise(model, [one.conversation() for one in drawn]),
        other=_surprise(model, [one.conversation(reason) for one, reason in zip(drawn, others, strict=True)]),
    )


def _surprise(model: Imitator, conversations: Sequence[list[Message]]) -> float:
    """Nats per token of the last message of each conversation."""
    rows = []
    for conversation in conversations:
        before, whole = model.encode(conversation[:-1]), model.encode(conversation)
        last = [False] * len(before.tokens) + whole.loss_mask[len(before.tokens) :]
        rows.append(Encoded(whole.tokens, last))
    with torch.no_grad():
        return float(model.loss(rows))
