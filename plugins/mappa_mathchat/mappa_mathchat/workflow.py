"""MathChat: a Problem Solver plans, a Code Executor computes, a Verifier answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from mappa_core import ConfigError, Message, Role, Scene, Stage, Step, Task, TaskError, ToolResult, Workflow
from mappa_core.sandbox import PYTHON, SMALLEST_LIMIT
from mappa_core.workflow import Contribution, PromptTemplates, read_rubric
from mappa_mathchat.equality import canonical_spelling
from mappa_mathchat.extract_answer import extract_final_answer
from mappa_mathchat.grader import Grader
from mappa_mathchat.plans import parse_plan

SOLVER = "problem_solver"
CODER = "code_executor"
VERIFIER = "verifier"
PROMPT_SETS = Path(__file__).parent / "prompts"


@dataclass
class MathChatOptions:
    context: Literal["full", "partial"] = "full"
    """Each agent sees every action before its own, or only the last action of its predecessor."""
    feedback: bool = False
    """Show the next agent what the coach said of an action, except where that coach was shown the truth. Agents then
    see in evaluation what they saw in training only with `eval.coach=true`."""
    coder_turns: int = 2
    """Actions of the Code Executor; it gets another one when its code failed or printed nothing."""
    prompts: str = "full"
    """full | smol | tiny | a folder that holds problem_solver.md, code_executor.md, verifier.md and results.md"""
    token_limit: int = 4096
    """Tokens that the prompts tell agents to stay within; what an action may really take is sampling.max_tokens."""
    output_chars: int = 8000
    """Characters of a program's stdout, and of its stderr, that agents are shown; more is cut in the middle."""

    def check(self) -> None:
        """Raise ConfigError if a value is invalid."""
        if self.coder_turns < 1:
            raise ConfigError(f"coder_turns: must be at least 1, not {self.coder_turns}")
        if self.token_limit < 1:
            raise ConfigError(f"token_limit: must be at least 1, not {self.token_limit}")
        if self.output_chars < SMALLEST_LIMIT:
            raise ConfigError(f"output_chars: must be at least {SMALLEST_LIMIT}, not {self.output_chars}")


class MathChat(Workflow):
    """Problem Solver (1 turn) -> Code Executor (its Python runs) -> Verifier (1 turn, answer in a box)."""

    agents: Mapping[str, Role] = {
        SOLVER: Role(
            brief="Plans how to solve the problem. Does not run code.",
            rubric=read_rubric("mappa_mathchat", SOLVER),
        ),
        CODER: Role(
            brief="Turns the plan into Python, which is run, and prints what the plan asks for.",
            rubric=read_rubric("mappa_mathchat", CODER),
        ),
        VERIFIER: Role(
            brief="Checks plan and output against the problem and gives the final answer in \\boxed{}.",
            rubric=read_rubric("mappa_mathchat", VERIFIER),
        ),
    }

    figures: ClassVar[tuple[str, ...]] = ("parsed",)

    def __init__(self, options: MathChatOptions) -> None:
        self._options = options
        self._turns = {SOLVER: 1, CODER: options.coder_turns, VERIFIER: 1}
        self.templates = PromptTemplates(
            options.prompts,
            tuple(self.agents),
            sets=PROMPT_SETS,
            output_chars=options.output_chars,
        )
        self.prompts = self.templates.texts
        self._grader = Grader()

    def with_prompts(self, prompts: Mapping[str, str]) -> Self:
        """Return a workflow with other templates of some agents. Raises ConfigError if one does not parse."""
        changed = super().with_prompts(prompts)
        changed.templates = self.templates.with_texts(prompts)
        return changed

    @property
    def max_turns(self) -> Mapping[str, int]:
        """One turn per agent, `coder_turns` for the Code Executor."""
        return self._turns

    async def run(self, stage: Stage) -> None:
        earlier: list[Contribution] = []
        for agent, turns in self._turns.items():
            earlier += await self._run_agent(stage, agent, turns, earlier)
        text = earlier[-1].text
        parsed = extract_final_answer(text) is not None
        stage.record(correct=await stage.grade(text), parsed=float(parsed))

    async def _run_agent(
        self, stage: Stage, agent: str, turns: int, earlier: Sequence[Contribution]
    ) -> Sequence[Contribution]:
        """Run all turns of one agent."""
        messages = [Message(role="user", content=self.build_prompt(agent, stage.task.prompt, earlier))]
        contributions = []
        for turn in range(turns):
            step = await stage.act(agent, messages, tools=(PYTHON,) if agent == CODER else ())
            contributions.append(await self._build_contribution(stage, step))
            if turn + 1 == turns or not needs_another_try(step.results):
                break
            answer = "\n\n".join(part for part in (contributions[-1].results, contributions[-1].feedback) if part)
            messages += [step.reply, Message(role="user", content=answer)]
        return contributions

    def build_prompt(self, agent: str, problem: str, earlier: Sequence[Contribution]) -> str:
        """Build the first prompt of an agent, with the earlier contributions that the option `context` allows."""
        seen = earlier if self._options.context == "full" else earlier[-1:]
        values = {"problem": problem, "earlier": tuple(seen), "token_limit": self._options.token_limit}
        return self.templates.render(agent, values)

    async def _build_contribution(self, stage: Stage, step: Step) -> Contribution:
        feedback = (await stage.verdict(step)).reasoning if self._options.feedback else ""
        results = self.templates.render_results(step.calls, step.results) if step.calls else ""
        return Contribution(agent=step.agent, text=step.reply.content, results=results, feedback=feedback)

    def find_answer(self, text: str) -> str | None:
        """Return the content of the last box of `text` outside think text."""
        return extract_final_answer(text)

    async def grade(self, text: str, task: Task) -> float:
        """Return 1 where the last box of `text` equals the truth, else 0."""
        if task.reference is None:
            raise TaskError(f"task {task.id} has no reference answer to grade against")
        return float(await self._grader.is_correct(text, task.reference))

    def answer(self, steps: Sequence[Step]) -> str | None:
        """Return the content of the last box of the graded text, in one spelling for all of one number."""
        found = extract_final_answer(steps[-1].reply.content)
        return None if found is None else canonical_spelling(found)

    def strata(self, scene: Scene) -> Mapping[str, str]:
        """Return the stratum `plan`: whether the team's plan only adds and subtracts or also scales. Left out where the
        plan is prose."""
        steps = (*scene.earlier, scene.step)
        plan = parse_plan(steps[0].reply.content)
        return {} if plan is None else {"plan": plan.kind}

    async def close(self) -> None:
        await self._grader.close()


def needs_another_try(results: Sequence[ToolResult]) -> bool:
    """Whether an action ran code that failed or printed nothing; an action without code needs no other try."""
    failed = any(result.status != "ok" for result in results)
    return bool(results) and (failed or not any(result.stdout.strip() for result in results))
