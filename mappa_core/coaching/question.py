"""What a coach is asked: a system message that is the same for all actions of a role, and a message with the evidence.

The parts of both are ordered from what never changes to what always does, so that a provider's prompt cache can keep
the beginning: rules, scale and form of the answer, the team, the rubric; then the mark of the call, the evidence, the
question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mappa_core.coaching.budget import ANY_MARK, CHARACTERS_PER_TOKEN, Sheet, cuts, estimate, fit, sheet, total
from mappa_core.coaching.evidence import Exhibit, of_action, of_actions
from mappa_core.coaching.fences import fenced, lines_of, new_mark
from mappa_core.coaching.findings import named
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.rubrics import PROMPTS, Rubrics, environment
from mappa_core.errors import CallError, CoachError, ConfigError
from mappa_core.records import Message, Role, Scene
from mappa_core.tools.cut import cut_middle

Counter = Callable[[Sequence[Message]], Awaitable[int | None]]
"""A provider's own counter of tokens; None where it cannot say."""

SMALLEST_BUDGET = 1000
LONGEST_REPLY = 4000
"""Characters of a reply that are sent back when it does not fit."""
LEAST_SHARE = 1 / 3
"""The least share of the estimate that a counter can be expected to find: beyond that it is not asked."""
MARGIN = 0.97
MARK_HERE, EVIDENCE_HERE = "\1", "\2"
"""Places in a frame; no text of ours or of data that was made neutral holds these characters."""
ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, ready to be sent.

    `mark` is that of its fences. `address` is a SHA-256 over all that decides the answer: our texts, the budget, and
    the evidence before it is cut, without its mark, so that no counter has a say in it. `template_hash` is one over our
    texts. `cut` names what was cut to fit. `tokens` are those of the evidence with its question, `counted` by the
    provider or else estimated.
    """

    messages: tuple[Message, ...]
    mark: str
    address: str
    template_hash: str
    cut: tuple[str, ...]
    tokens: int
    counted: bool


class Questions:
    """Makes the questions of a coach."""

    def __init__(
        self, options: LLMCoachOptions, *, count: Counter | None = None, mark: Callable[[], str] = new_mark
    ) -> None:
        """`count` is asked only where evidence is estimated not to fit; `mark` gives a new mark for every call.

        Raises:
            ConfigError: a budget or a rubric that cannot be used.
        """
        if options.budget < SMALLEST_BUDGET:
            raise ConfigError(f"coach.options.budget is at least {SMALLEST_BUDGET} tokens, not {options.budget}")
        self._budget = options.budget
        self._correction = options.correction
        self._rubrics = Rubrics(options.rubrics)
        self._count = count
        self._new_mark = mark
        frames = environment(PROMPTS)
        self._system, self._question, self._again = (
            frames.get_template(f"{name}.md") for name in ("system", "question", "again")
        )
        self._later_frames = "\0".join(
            (PROMPTS / f"{name}.md").read_text(encoding="utf-8") for name in ("question", "again")
        )
        self._instructions: dict[tuple[object, ...], _Instructions] = {}

    async def about(self, scene: Scene) -> Question:
        """Ask for a judgement of `scene.step`; in hindsight where the scene has an outcome.

        Raises:
            ConfigError: the rubric is wrong.
            CoachError: the evidence does not fit the budget, however much is cut.
        """
        instructions = self._instructions_for(scene, {scene.step.agent: scene.role}, together=False)
        return await self._asked(
            _Draft(
                instructions=instructions,
                sheets=self._sheets(of_action(scene)),
                judged=named(scene.step),
                actions=None,
                hindsight=scene.outcome is not None,
            )
        )

    async def about_all(self, scenes: Sequence[Scene]) -> Question:
        """Ask for a judgement of the step of each of `scenes`, actions 1, 2, … of one trajectory, in order.

        Raises:
            ConfigError: a rubric is wrong.
            CoachError: the evidence does not fit the budget, however much is cut.
            ValueError: the truth may be shown with some of the scenes and not with others.
        """
        if len({scene.task.reference for scene in scenes}) != 1:
            raise ValueError("scenes with the truth and scenes without it cannot share a question")
        last = scenes[-1]
        roles = last.team or {scene.step.agent: scene.role for scene in scenes}
        return await self._asked(
            _Draft(
                instructions=self._instructions_for(last, roles, together=True),
                sheets=self._sheets(of_actions(scenes)),
                judged="",
                actions=len(scenes),
                hindsight=last.outcome is not None,
            )
        )

    def again(self, question: Question, reply: str, problem: str) -> Question:
        """Ask `question` once more, with a new mark, as `reply` did not fit; `problem` says why, in our own words."""
        mark = self._new_mark()
        system, user = question.messages
        evidence = user.content.replace(question.mark, mark)
        bad = fenced(lines_of(cut_middle(reply, LONGEST_REPLY)), mark)
        tail = self._again.render(reply=bad, problem=problem)
        messages = (system, replace(user, content=evidence + tail))
        return replace(question, messages=messages, mark=mark, tokens=question.tokens + round(estimate(tail)))

    def _instructions_for(self, scene: Scene, roles: Mapping[str, Role], *, together: bool) -> _Instructions:
        """The system message for the actions of `roles`; the same object for the same roles and options."""
        team = scene.team or roles
        hindsight, truth = scene.outcome is not None, scene.task.reference is not None
        key = (tuple(team.items()), tuple(roles.items()), together, hindsight, truth)
        if key not in self._instructions:
            known = {"team": team, "hindsight": hindsight, "truth": truth, "correction": self._correction}
            rubrics = {agent: self._rubrics.text(agent, role, **known) for agent, role in roles.items()}
            text = self._system.render(rubrics=rubrics, together=together, **known).strip()
            digest = hashlib.sha256(f"{text}\0{self._later_frames}".encode()).hexdigest()
            self._instructions[key] = _Instructions(text=text, template_hash=digest)
        return self._instructions[key]

    def _sheets(self, exhibits: Sequence[Exhibit]) -> tuple[Sheet, ...]:
        return tuple(sheet(exhibit, CHARACTERS_PER_TOKEN * self._budget) for exhibit in exhibits)

    async def _asked(self, draft: _Draft) -> Question:
        fitted, tokens, counted = await self._fitted(draft)
        mark = self._new_mark()
        messages = (
            Message(role="system", content=draft.instructions.text),
            Message(role="user", content=fitted.message(mark)),
        )
        return Question(
            messages=messages,
            mark=mark,
            address=draft.address(self._budget),
            template_hash=draft.instructions.template_hash,
            cut=cuts(fitted.sheets),
            tokens=round(tokens),
            counted=counted,
        )

    async def _fitted(self, draft: _Draft) -> tuple[_Fitted, float, bool]:
        """The evidence that fits, the tokens of its message, and whether these were counted."""
        fitted = self._framed(draft, draft.sheets)
        if fitted.tokens <= self._budget:
            return fitted, fitted.tokens, False
        # Tokens to one that is estimated, as far as is known, and how often the counter may still be asked.
        scale, asks = (1.0, 0) if self._count is None else (LEAST_SHARE, ROUNDS - 1)
        for _ in range(ROUNDS):
            tokens, exact = fitted.tokens * scale, None
            if asks and tokens <= self._budget:
                exact = await self._counted(fitted.message(ANY_MARK))
                asks = 0 if exact is None else asks - 1
                tokens = fitted.tokens if exact is None else exact
                scale = tokens / fitted.tokens
            if tokens <= self._budget:
                return fitted, tokens, exact is not None
            room = MARGIN * self._budget / scale - (fitted.tokens - total(fitted.sheets))
            fitted = self._framed(draft, fit(draft.sheets, room))
        raise CoachError(f"the evidence could not be cut to {self._budget} tokens")

    def _framed(self, draft: _Draft, sheets: Sequence[Sheet]) -> _Fitted:
        frame = self._question.render(
            mark=MARK_HERE,
            evidence=EVIDENCE_HERE,
            cut=cuts(sheets),
            judged=draft.judged,
            actions=draft.actions,
            hindsight=draft.hindsight,
        )
        tokens = total(sheets) + estimate(frame.replace(MARK_HERE, ANY_MARK))
        return _Fitted(sheets=tuple(sheets), frame=frame, tokens=tokens)

    async def _counted(self, text: str) -> int | None:
        """Tokens of a message by the provider's counter; None where it cannot say, or is out of reach."""
        if self._count is None:
            return None
        try:
            return await self._count((Message(role="user", content=text),))
        except CallError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instructions:
    """A system message."""

    text: str
    template_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A question before its evidence is cut."""

    instructions: _Instructions
    sheets: tuple[Sheet, ...]
    judged: str
    actions: int | None
    hindsight: bool

    def address(self, budget: int) -> str:
        asked = (self.instructions.template_hash, str(budget), self.judged, str(self.actions))
        return hashlib.sha256("\0".join((*asked, _evidence(self.sheets, mark=""))).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """Evidence with the frame that it is to stand in. `tokens` are estimated, of both."""

    sheets: tuple[Sheet, ...]
    frame: str
    tokens: float

    def message(self, mark: str) -> str:
        return self.frame.replace(MARK_HERE, mark).replace(EVIDENCE_HERE, _evidence(self.sheets, mark))


def _evidence(sheets: Sequence[Sheet], mark: str) -> str:
    return "\n\n".join(_shown(one.exhibit.title, one.lines, mark) for one in sheets)


def _shown(title: str, lines: str | None, mark: str) -> str:
    return title if lines is None else f"{title}\n{fenced(lines, mark)}"
