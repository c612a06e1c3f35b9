"""The estimator `distill`: a teacher that knows more about an action teaches the policy that took it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mappa_core import ConfigError, Estimator, Message, Step, Trajectory, Use
from mappa_core.engine import Advantages, Experience, Render, returns_to_go, select_rows
from mappa_engine.arrays import Float64, Int32, Int64

REASON = "{reason}"
_TEMPLATE = f"""

What a coach said of an earlier reply to this:
{REASON}

Reply again, with this in mind."""


@dataclass
class DistillOptions:
    """Learns from a teacher: the policy itself with the coach's reason in its prompt, or another policy."""

    weight: float = 1.0
    """Share of the teacher in the advantage; the rest is that of `rewards`."""
    rewards: Use | None = None
    """Estimator of the rewards' share, needed where `weight` is below 1."""
    policy: str | None = None
    """The policy that teaches, with the same tokenizer and chat template; null: the acting policy teaches itself."""
    reason: bool = True
    """Whether the teacher reads the coach's reasons for its verdicts on the action. Actions without one have no
    teacher."""
    template: str = _TEMPLATE
    """What follows the last message of the teacher's prompt; `{reason}` is replaced."""
    discount: float = 0.0
    """How much a token is credited with what follows it in the action: 0 nothing, 1 all of it."""
    max_score: float = 10.0
    """Actions scored higher have no teacher."""
    max_prompt_tokens: int = 4096
    """Actions whose prompt with the reason is longer have no teacher."""
    truth: bool = False
    """Whether reasons of coaches that saw the ground truth (`coach.reference_for`) may be read by the teacher. They can
    contain the answer, so the policy would be taught to know it."""

    def check(self) -> None:
        for name in ("weight", "discount"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}: must be from 0 to 1, not {getattr(self, name):g}")
        if self.weight < 1.0 and self.rewards is None:
            raise ConfigError("weight: below 1 the rest is learned from rewards: set rewards.use to their estimator")
        if self.policy is None and not self.reason:
            raise ConfigError("policy: name the policy that teaches, or set reason=true: a policy that reads what it "
                              "read before has nothing to teach itself")  # fmt: skip
        if REASON not in self.template:
            raise ConfigError(f"template: must contain {REASON}")
        if self.max_prompt_tokens < 1:
            raise ConfigError(f"max_prompt_tokens: must be at least 1, not {self.max_prompt_tokens}")


def build_distill(options: DistillOptions, build: Callable[[Use], Estimator]) -> Distill:
    """Build the estimator of `options`, that of the rewards by `build`."""
    return Distill(options, None if options.rewards is None else build(options.rewards))


class Distill:
    """Self-Distillation Policy Optimization (SDPO; Hübotter et al. 2026, arXiv:2601.20802) per action of a team, and
    on-policy distillation (GKD, Agarwal et al. 2023, arXiv:2306.13649; MiniLLM, Gu et al. 2023, arXiv:2306.08543).

        gap_t = log q(a_t | prompt', a_<t) - log p(a_t | prompt, a_<t)
        A_t = weight * sum_{s >= t} discount^(s - t) gap_s + (1 - weight) * A_t of `rewards`

    p is the policy as it was before the update, on its own prompt; q the teacher: the same weights after the prompt and
    the coach's reason (`reason`), or another `policy`. The sum is over the action's own tokens; without a teacher gap
    is 0, and the action keeps its part in the mean of the step.

    With discount 1 the expected gradient is that of -KL(p || q) between whole actions, exactly, as in MiniLLM; with 0
    that of the KL of every next token, with what was written before it held fixed, as in SDPO and GKD, with less noise.
    Both are estimated from the sampled token alone. An action that was drawn from a cut distribution is compared in
    what the cut left.
    """

    def __init__(self, options: DistillOptions, rewards: Estimator | None) -> None:
        self._options, self._rewards = options, rewards

    def teacher_policy(self, agents: Collection[str], saw_truth: Collection[str]) -> str | None:
        """Return the policy that teaches, None if each teaches itself. Raises ConfigError if an agent's coach sees the
        truth and its reasons are to be read."""
        shown = [agent for agent in agents if agent in saw_truth]
        if self._options.reason and shown and not self._options.truth:
            raise ConfigError(
                f"estimator distill: the coach of {', '.join(shown)} sees the reference answer (coach.reference_for), "
                "and a reason that gives it away would teach to know it; take the agent out of coach.reference_for, "
                "give it another estimator (estimator.by_agent), or set truth=true"
            )
        return self._options.policy

    def teacher_view(self, experience: Experience, trajectories: Sequence[Trajectory], render: Render) -> Experience:
        """Return the rows that have a teacher, with the prompts that it reads."""
        row_of = {step: row for row, step in enumerate(experience.steps)}
        prompts: dict[int, Int32] = {}
        for step, reason in self._lessons(trajectories):
            row = row_of.get(step.id)
            if row is None or not experience.weight[row] > 0:
                continue
            prompt = self._prompt(step, reason, render)
            if len(prompt) <= self._options.max_prompt_tokens:
                prompts[row] = prompt
        rows = np.array(sorted(prompts), dtype=np.int64)
        return self._with_prompts(select_rows(experience, rows), [prompts[row] for row in rows.tolist()])

    def _lessons(self, trajectories: Sequence[Trajectory]) -> Iterator[tuple[Step, str]]:
        """Iterate over the actions that have a teacher, with the reasons that it reads."""
        for trajectory in trajectories:
            last = {(verdict.step, str(verdict.phase)): verdict for verdict in trajectory.verdicts}
            for step in trajectory.steps:
                given = [verdict for (name, _), verdict in last.items() if name == step.id]
                scores = [verdict.score for verdict in given if verdict.score is not None]
                reasons = [verdict.reasoning.strip() for verdict in given if verdict.score is not None]
                reason = "\n".join(dict.fromkeys(reason for reason in reasons if reason))
                if all(score <= self._options.max_score for score in scores) and (reason or not self._options.reason):
                    yield step, reason

    def _prompt(self, step: Step, reason: str, render: Render) -> Int32:
        teacher = self._options.policy or step.policy
        own = np.asarray(step.completion.prompt_tokens, dtype=np.int32)
        if teacher != step.policy and not np.array_equal(render(teacher, step, step.messages), own):
            raise ConfigError(
                f"estimator distill: policy={teacher} reads the prompt of {step.policy} as other tokens; a teacher has "
                "the same tokenizer and chat template"
            )
        if not self._options.reason:
            return own
        return render(teacher, step, _append(step.messages, self._options.template.replace(REASON, reason)))

    def _with_prompts(self, view: Experience, prompts: Sequence[Int32]) -> Experience:
        offsets: Int64 = np.cumsum([0, *(len(prompt) for prompt in prompts)], dtype=np.int64)
        view = replace(
            view,
            prompt_tokens=np.concatenate([np.empty(0, np.int32), *prompts], dtype=np.int32),
            prompt_offsets=offsets,
        )
        if self._options.policy is None:
            return view
        return replace(view, policies=(self._options.policy,), policy=np.zeros_like(view.policy))

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        weight = self._options.weight
        taught = weight * _discounted_gaps(experience, self._options.discount)
        if self._rewards is None:
            return Advantages(advantages=taught.astype(np.float32)), state
        given, state = self._rewards(experience, state)
        return replace(given, advantages=(taught + (1.0 - weight) * given.advantages).astype(np.float32)), state


def _discounted_gaps(experience: Experience, discount: float) -> Float64:
    """Compute the discounted sum, within each action, of teacher less learner, (N,); 0 without a teacher."""
    teacher, old = experience.teacher_logprobs, experience.old_logprobs
    if teacher is None or old is None:
        raise ValueError("an experience is scored by teacher and learner before its advantages are estimated")
    known = ~np.isnan(teacher) & (experience.token_weight > 0)
    gaps = np.where(known, np.subtract(teacher, old, dtype=np.float64), 0.0)
    return returns_to_go(gaps, experience.offsets, discount) if discount else gaps


def _append(messages: Sequence[Message], text: str) -> list[Message]:
    """Return the messages with `text` at the end of the last one if a user wrote it, else as one more of a user."""
    *before, last = messages
    if last.role == "user":
        return [*before, replace(last, content=last.content + text)]
    return [*messages, Message(role="user", content=text.lstrip())]
