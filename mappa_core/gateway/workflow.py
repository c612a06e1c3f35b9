"""The workflow `gateway`: it starts an agent that was written elsewhere, and makes actions of its requests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from mappa_core.errors import ConfigError, TaskError, WorkflowError
from mappa_core.gateway.agents import Assignment, Start, by_command, by_function, named
from mappa_core.gateway.conversation import Conversation
from mappa_core.gateway.options import GatewayOptions, OutsideAgent
from mappa_core.gateway.server import Gateway
from mappa_core.protocols import Stage, Workflow
from mappa_core.records import Role, Step, Task

ANSWERED = "answered"


class GatewayWorkflow(Workflow):
    """Plays a trajectory by running the agent's program once. Its answer is graded; no answer is no solution, and the
    figure `answered` says how often there was one."""

    figures: ClassVar[tuple[str, ...]] = (ANSWERED,)

    def __init__(self, options: GatewayOptions) -> None:
        _check(options)
        self._options = options
        self.agents: Mapping[str, Role] = {name: _role(name, agent) for name, agent in options.agents.items()}
        self._agent_of = _names(options.agents)
        self._start = _start(options)
        self._grade = None if options.grade == "exact" else named(options.grade, "workflow.options.grade")
        self._gateway = Gateway()

    @property
    def most_turns(self) -> Mapping[str, int]:
        """Any agent may take all actions of a trajectory."""
        return dict.fromkeys(self.agents, self._options.max_actions)

    async def run(self, stage: Stage) -> None:
        self._gateway.open()
        conversation = Conversation(stage, self._options, self._agent_of)
        assignment = Assignment(
            task=stage.task,
            base_url=self._gateway.url,
            api_key=conversation.key,
            seed=stage.random.getrandbits(63),
        )
        with self._gateway.door(conversation):
            output = await self._played(conversation, assignment)
        if not conversation.steps:
            raise WorkflowError(
                "the agent ended without a request that became an action: its client must use the base_url and the "
                "api_key that it is given (a command finds them in OPENAI_BASE_URL and OPENAI_API_KEY)"
            )
        answer = output if self._options.answer == "output" else conversation.last.reply.content
        correct = 0.0 if answer is None else await stage.grade(answer)
        stage.record(correct=correct, answered=float(answer is not None))

    async def _played(self, conversation: Conversation, assignment: Assignment) -> str | None:
        """What the agent's program gives, once it has ended and its actions are done."""
        agent = asyncio.ensure_future(self._start(assignment))
        try:
            await asyncio.wait((agent, conversation.broken), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            conversation.abandon()
            raise
        finally:
            agent.cancel()
            await asyncio.gather(conversation.close(), _ended(agent))
        if conversation.broken.done():
            conversation.broken.result()
        failure = agent.exception()
        if failure is not None:
            raise conversation.refused or failure
        return agent.result()

    async def grade(self, text: str, task: Task) -> float:
        """The answer against the truth, as `grade` says."""
        if self._grade is not None:
            found = self._grade(text, task)
            return float(await found if inspect.isawaitable(found) else found)
        if task.reference is None:
            raise TaskError(f"task {task.id} has no reference answer to grade against")
        return float(text.strip() == task.reference.strip())

    def answer(self, steps: Sequence[Step]) -> str | None:
        """Where the last action is the answer, its text."""
        return steps[-1].reply.content.strip() if self._options.answer == "last" else None

    async def close(self) -> None:
        await self._gateway.close()


async def _ended(agent: asyncio.Future[str | None]) -> None:
    """Wait for the end of a program, however it ends: what it raises after it was given up is nobody's."""
    await asyncio.wait((agent,))
    if not agent.cancelled():
        agent.exception()


def _check(options: GatewayOptions) -> None:
    place = "workflow.options"
    if not options.agents:
        raise ConfigError(f"{place}.agents names no agent: give at least one, {{NAME: {{brief: what it is for}}}}")
    if (options.function is None) == (not options.command):
        raise ConfigError(f"{place}: give one of function (module:function) and command (a program and its arguments)")
    if options.answer not in ("output", "last"):
        raise ConfigError(f"{place}.answer is output or last, not {options.answer!r}")
    if options.on_divergence not in ("stop", "fail"):
        raise ConfigError(f"{place}.on_divergence is stop or fail, not {options.on_divergence!r}")
    if options.max_actions < 1 or options.at_once < 1 or options.silence_s <= 0:
        raise ConfigError(f"{place}: max_actions and at_once are at least 1, and silence_s is above 0")


def _start(options: GatewayOptions) -> Start:
    if options.function is not None:
        return by_function(named(options.function, "workflow.options.function"))
    return by_command(options.command)


def _role(name: str, agent: OutsideAgent) -> Role:
    if agent.rubric is None:
        return Role(brief=agent.brief)
    try:
        return Role(brief=agent.brief, rubric=Path(agent.rubric).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"workflow.options.agents.{name}.rubric: {agent.rubric} cannot be read: {error}") from error


def _names(agents: Mapping[str, OutsideAgent]) -> Mapping[str, str]:
    """The agent by every name that a request may call it."""
    found: dict[str, str] = {}
    for name, agent in agents.items():
        for called in (name, *agent.models):
            if called in found:
                raise ConfigError(
                    f"workflow.options.agents: {called!r} means {found[called]} and {name}; a model is one agent's"
                )
            found[called] = name
    return found
