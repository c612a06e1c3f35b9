"""The workflow `gateway`: runs an external agent, and turns its requests into actions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from mappa_core import ConfigError, Role, Stage, Step, Task, TaskError, Workflow, WorkflowError
from mappa_gateway.launchers import (
    AgentLauncher,
    AgentLoop,
    Assignment,
    command_launcher,
    function_launcher,
    import_function,
)
from mappa_gateway.options import ExternalAgent, GatewayOptions
from mappa_gateway.server import API_PATH, GatewayServer
from mappa_gateway.session import AgentSession

ANSWERED = "answered"
BLOCKED = (
    "an agent blocks the event loop that all asynchronous agents share: await an asynchronous client "
    "(openai.AsyncOpenAI, ainvoke) in an `async def`, or make the agent a plain function, which has a thread of its own"
)


class GatewayWorkflow(Workflow):
    """Runs the agent's program once per trajectory. Its answer is graded; no answer counts as wrong, and the figure
    `answered` is the share of trajectories with an answer."""

    figures: ClassVar[tuple[str, ...]] = (ANSWERED,)

    def __init__(self, options: GatewayOptions) -> None:
        _check_options(options)
        self._options = options
        self.agents: Mapping[str, Role] = {name: _role(name, agent) for name, agent in options.agents.items()}
        self.prompts = {
            name: _read_prompt(agent.prompt, f"workflow.options.agents.{name}.prompt")
            for name, agent in options.agents.items()
            if agent.prompt is not None
        }
        self._named_prompts = self.prompts
        self._agent_of = _agents_by_model(options.agents)
        self._loop = AgentLoop()
        self._start = _launcher(options, self._loop)
        self._grade = None if options.grade == "exact" else import_function(options.grade, "workflow.options.grade")
        self._gateway = GatewayServer()

    @property
    def max_turns(self) -> Mapping[str, int]:
        """Maximum actions of each agent: any one may take all actions of a trajectory."""
        return dict.fromkeys(self.agents, self._options.max_actions)

    async def run(self, stage: Stage) -> None:
        self._gateway.open()
        replaced = {
            agent: (text, self.prompts[agent])
            for agent, text in self._named_prompts.items()
            if self.prompts[agent] != text
        }
        session = AgentSession(stage, self._options, self._agent_of, replaced)
        assignment = Assignment(
            task=stage.task,
            base_url=f"{self._gateway.url}{API_PATH}",
            root_url=self._gateway.url,
            api_key=session.key,
            seed=stage.random.getrandbits(63),
        )
        with self._gateway.serve_session(session):
            output = await self._run_agent(session, assignment)
        if not session.steps:
            raise WorkflowError(
                "the agent ended without a request that became an action: its client must use the base_url and the "
                "api_key that it is given (a command finds them in OPENAI_BASE_URL and OPENAI_API_KEY, or in "
                "ANTHROPIC_BASE_URL and ANTHROPIC_AUTH_TOKEN)"
            )
        answer = output if self._options.answer == "output" else session.last_step.reply.content
        correct = 0.0 if answer is None else await stage.grade(answer)
        stage.record(correct=correct, answered=float(answer is not None))

    async def _run_agent(self, session: AgentSession, assignment: Assignment) -> str | None:
        """Run the agent's program; returns its output once it has ended and its actions are done."""
        agent = asyncio.ensure_future(self._start(assignment))
        try:
            await asyncio.wait((agent, session.failure), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            session.cancel_actions()
            raise
        finally:
            agent.cancel()
            await asyncio.gather(session.close(), _wait_ended(agent))
        if session.failure.done():
            if await self._loop.is_blocked():
                raise WorkflowError(BLOCKED) from session.failure.exception()
            session.failure.result()
        error = agent.exception()
        if error is not None:
            raise session.prompt_too_long or error
        return agent.result()

    async def grade(self, text: str, task: Task) -> float:
        """Grade the answer against the truth, as configured by `grade`."""
        if self._grade is not None:
            given = self._grade(text, task)
            grade = float(await given if inspect.isawaitable(given) else given)
            if not 0.0 <= grade <= 1.0:
                raise ConfigError(
                    f"workflow.options.grade: {self._options.grade} gave {grade:g} for the task {task.id}; a grade is "
                    "a number from 0 (wrong) to 1 (right)"
                )
            return grade
        if task.reference is None:
            raise TaskError(f"task {task.id} has no reference answer to grade against")
        return float(text.strip() == task.reference.strip())

    def answer(self, steps: Sequence[Step]) -> str | None:
        """Text of the last action, if the option `answer` is `last`."""
        return steps[-1].reply.content.strip() if self._options.answer == "last" else None

    async def close(self) -> None:
        await self._loop.close()
        await self._gateway.close()


async def _wait_ended(agent: asyncio.Future[str | None]) -> None:
    """Wait until a program ends in any way; ignores errors that it raises after it was abandoned."""
    await asyncio.wait((agent,))
    if not agent.cancelled():
        agent.exception()


def _check_options(options: GatewayOptions) -> None:
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


def _launcher(options: GatewayOptions, loop: AgentLoop) -> AgentLauncher:
    if options.function is not None:
        return function_launcher(import_function(options.function, "workflow.options.function"), loop)
    return command_launcher(options.command)


def _role(name: str, agent: ExternalAgent) -> Role:
    if agent.rubric is None:
        return Role(brief=agent.brief)
    return Role(brief=agent.brief, rubric=_read_text(agent.rubric, f"workflow.options.agents.{name}.rubric"))


def _read_prompt(path: str, key: str) -> str:
    text = _read_text(path, key).strip()
    if not text:
        raise ConfigError(f"{key}: {path} is empty; it holds what the agent's requests hold, word for word")
    return text


def _read_text(path: str, key: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error}") from error


def _agents_by_model(agents: Mapping[str, ExternalAgent]) -> Mapping[str, str]:
    """Map every name that a request may use to its agent."""
    agent_of: dict[str, str] = {}
    for name, agent in agents.items():
        for called in (name, *agent.models):
            if called in agent_of:
                raise ConfigError(
                    f"workflow.options.agents: {called!r} means {agent_of[called]} and {name}; a model is one agent's"
                )
            agent_of[called] = name
    return agent_of
