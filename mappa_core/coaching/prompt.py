"""Prompt of LLM coaches: a system message that is the same for all actions of a role, and a message with the evidence,
so that a provider's prompt cache can reuse the prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mappa_core.coaching.contract_findings import step_name
from mappa_core.coaching.data_fences import fence_lines, new_nonce, prefix_lines, quote_name
from mappa_core.coaching.evidence import Exhibit, action_exhibits, trajectory_exhibits
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.rubrics import PROMPT_FOLDER, Rubrics, quote_files
from mappa_core.coaching.token_budget import (
    MAX_CHARACTERS_PER_TOKEN,
    PLACEHOLDER_NONCE,
    RenderedExhibit,
    cut_names,
    estimate_tokens,
    fit_to_budget,
    render_exhibit,
    total_tokens,
)
from mappa_core.errors import CallError, CoachError
from mappa_core.records import Message, Role, Scene
from mappa_core.tools.prompt_templates import create_prompt_environment
from mappa_core.tools.truncate import cut_middle

TokenCounter = Callable[[Sequence[Message]], Awaitable[int | None]]

MAX_REPLY_CHARACTERS = 4000
"""Characters of an invalid reply that is sent back."""
MIN_COUNT_RATIO = 1 / 3
"""Minimum expected ratio of counted to estimated tokens: evidence that could not fit even so is not counted."""
MARGIN = 0.97
"""Share of the budget that evidence is cut to: after a cut its tokens are estimated anew, and may be more."""
NONCE_SLOT, EVIDENCE_SLOT = "\1", "\2"
"""Places in a rendered frame. Neither templates nor neutralized data contain these characters."""
MAX_FIT_ROUNDS = 4
LATER_FRAMES = ("question.md", "again.md")
"""Templates after the system message. Their sources are part of its hash, as they affect the answer, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachPrompt:
    """A prompt, ready to be sent. `nonce` is that of its fences. `address` is a SHA-256 over all that affects the
    answer: our templates, the budget, and the evidence before it is cut, without its nonce. `template_hash` covers our
    templates. `cut` names what was cut. `tokens` are those of the user message, counted or else estimated."""

    messages: tuple[Message, ...]
    nonce: str
    address: str
    template_hash: str
    cut: tuple[str, ...]
    tokens: int


class PromptBuilder:
    """Builds the prompts of a coach."""

    def __init__(
        self, options: LLMCoachOptions, *, count: TokenCounter | None = None, new_nonce: Callable[[], str] = new_nonce
    ) -> None:
        """`count` is called only if the evidence is estimated not to fit; `new_nonce` returns a new nonce per prompt.
        Raises ConfigError if a rubric is invalid."""
        self._budget = options.budget
        self._correction = options.correction
        self._rubrics = Rubrics(options.rubrics)
        self._count = count
        self._new_nonce = new_nonce
        frames = create_prompt_environment(PROMPT_FOLDER)
        self._system, self._question, self._repair = map(frames.get_template, ("system.md", *LATER_FRAMES))
        self._later_frames = "\0".join((PROMPT_FOLDER / name).read_text(encoding="utf-8") for name in LATER_FRAMES)
        self._system_messages: dict[tuple[object, ...], tuple[str, str]] = {}

    async def build(self, scene: Scene) -> CoachPrompt:
        """Build the prompt to judge `scene.step`; in hindsight if the scene has an outcome. Raises ConfigError if the
        rubric is invalid, CoachError if the evidence does not fit the budget."""
        return await self._build((scene,), action_exhibits(scene), together=False)

    async def build_for_trajectory(self, scenes: Sequence[Scene]) -> CoachPrompt:
        """Build the prompt to judge the step of each of `scenes`, actions 1, 2, … of one trajectory, in order. Raises
        like `build`, and ValueError if only some of the scenes have the truth."""
        if len({scene.task.reference for scene in scenes}) != 1:
            raise ValueError("scenes with the truth and scenes without it cannot share a question")
        return await self._build(scenes, trajectory_exhibits(scenes), together=True)

    def build_repair(self, prompt: CoachPrompt, reply: str, problem: str) -> CoachPrompt:
        """Build the prompt that sends an invalid `reply` back, with a new nonce; `problem` is in our own words."""
        nonce = self._new_nonce()
        system, user = prompt.messages
        evidence = user.content.replace(prompt.nonce, nonce)
        bad = fence_lines(prefix_lines(cut_middle(reply, MAX_REPLY_CHARACTERS)), nonce)
        tail = self._repair.render(reply=bad, problem=problem)
        messages = (system, replace(user, content=evidence + tail))
        address = hashlib.sha256(ascii((prompt.address, reply, problem)).encode()).hexdigest()
        tokens = prompt.tokens + round(estimate_tokens(tail))
        return replace(prompt, messages=messages, nonce=nonce, address=address, tokens=tokens)

    async def _build(self, scenes: Sequence[Scene], exhibits: Sequence[Exhibit], *, together: bool) -> CoachPrompt:
        scene, roles = scenes[-1], {scene.step.agent: scene.role for scene in scenes}
        if together:
            judged, actions = "", len(scenes)
            # The rubrics of the whole team, so that the system message does not depend on who acted.
            roles = dict(scene.team) or roles
        else:
            judged, actions = step_name(scene.step), None
        system, template_hash = self._system_message(scene, roles, together)
        whole = [render_exhibit(exhibit, MAX_CHARACTERS_PER_TOKEN * self._budget) for exhibit in exhibits]
        # Before the cut, which the budget determines: so the address does not depend on the provider's counter.
        address_parts = (template_hash, str(self._budget), judged, str(actions), _evidence(whole, nonce=""))
        about = {"judged": judged, "actions": actions, "hindsight": scene.outcome is not None}
        evidence, tokens = await self._fit(whole, partial(self._frame_evidence, about))
        nonce = self._new_nonce()
        return CoachPrompt(
            messages=(Message(role="system", content=system), Message(role="user", content=evidence.message(nonce))),
            nonce=nonce,
            address=hashlib.sha256("\0".join(address_parts).encode()).hexdigest(),
            template_hash=template_hash,
            cut=cut_names(evidence.exhibits),
            tokens=round(tokens),
        )

    def _system_message(self, scene: Scene, roles: Mapping[str, Role], together: bool) -> tuple[str, str]:
        team = scene.team or roles
        hindsight, truth = scene.outcome is not None, scene.task.reference is not None
        key = (tuple(team.items()), tuple(roles.items()), together, hindsight, truth)
        if key not in self._system_messages:
            known = {"team": team, "hindsight": hindsight, "truth": truth, "correction": self._correction}
            rubrics = {agent: self._rubrics.render(agent, role, **known) for agent, role in roles.items()}
            # In the order of the team, and once each, as `ReplySchema` has them.
            blamable = [quote_name(agent, always=True) for agent in dict.fromkeys((*team, *roles))]
            shown = {
                **known,
                "team": {quote_name(agent): quote_files(role) for agent, role in team.items()},
                "rubrics": {quote_name(agent): text for agent, text in rubrics.items()},
            }
            text = self._system.render(shown, together=together, blamable=blamable).strip()
            self._system_messages[key] = (text, hashlib.sha256(f"{text}\0{self._later_frames}".encode()).hexdigest())
        return self._system_messages[key]

    async def _fit(
        self, whole: Sequence[RenderedExhibit], frame: Callable[[Sequence[RenderedExhibit]], _FramedEvidence]
    ) -> tuple[_FramedEvidence, float]:
        """Cut the evidence to the budget; return it and the tokens of its message."""
        evidence = frame(whole)
        if evidence.tokens <= self._budget:
            return evidence, evidence.tokens
        # Best known ratio of actual to estimated tokens, and how often the counter may still be called.
        scale, counts_left = 1.0, 0
        if self._count is not None:
            scale, counts_left = MIN_COUNT_RATIO, MAX_FIT_ROUNDS - 1
        for _ in range(MAX_FIT_ROUNDS):
            tokens = evidence.tokens * scale
            # Counted only if it may fit: a count is a call to the provider.
            if counts_left and tokens <= self._budget:
                counted = await self._count_tokens(evidence.message(PLACEHOLDER_NONCE))
                # A counter that failed is not asked again for this prompt; the estimate counts from then on.
                counts_left = 0 if counted is None else counts_left - 1
                tokens = evidence.tokens if counted is None else counted
                scale = tokens / evidence.tokens
            if tokens <= self._budget:
                return evidence, tokens
            # In estimated tokens, as `fit_to_budget` counts them, less those of the frame, which cannot be cut.
            frame_tokens = evidence.tokens - total_tokens(evidence.exhibits)
            room = MARGIN * self._budget / scale - frame_tokens
            # From the whole evidence each time: what a first cut took too much of comes back.
            evidence = frame(fit_to_budget(whole, room))
        raise CoachError(
            f"the evidence could not be cut to {self._budget} tokens in {MAX_FIT_ROUNDS} rounds: raise the coach's "
            "option budget"
        )

    def _frame_evidence(self, about: Mapping[str, Any], exhibits: Sequence[RenderedExhibit]) -> _FramedEvidence:
        frame = self._question.render(mark=NONCE_SLOT, evidence=EVIDENCE_SLOT, cut=cut_names(exhibits), **about)
        tokens = total_tokens(exhibits) + estimate_tokens(frame.replace(NONCE_SLOT, PLACEHOLDER_NONCE))
        return _FramedEvidence(exhibits=exhibits, frame=frame, tokens=tokens)

    async def _count_tokens(self, text: str) -> int | None:
        """Count the tokens of a message with the provider's counter; None if it has none or the call fails."""
        if self._count is None:
            return None
        try:
            return await self._count((Message(role="user", content=text),))
        except CallError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _FramedEvidence:
    """Evidence with its frame (the user message without evidence). `tokens` are estimated, of both."""

    exhibits: Sequence[RenderedExhibit]
    frame: str
    tokens: float

    def message(self, nonce: str) -> str:
        return self.frame.replace(NONCE_SLOT, nonce).replace(EVIDENCE_SLOT, _evidence(self.exhibits, nonce))


def _evidence(exhibits: Sequence[RenderedExhibit], nonce: str) -> str:
    parts = []
    for rendered in exhibits:
        title, lines = rendered.exhibit.title, rendered.lines
        parts.append(title if lines is None else f"{title}\n{fence_lines(lines, nonce)}")
    return "\n\n".join(parts)
