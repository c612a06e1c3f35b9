"""Questions of an investigation. The parts that all questions about a play share come first, so that a provider's
prompt cache can reuse them; of what was read only the last results are shown, and what the model noted of the others.
So all questions together are as long as what was read, plus a constant part each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappa_core.coaching.categories import CATEGORIES
from mappa_core.coaching.data_fences import fence_lines, new_nonce, prefix_lines, quote_name
from mappa_core.coaching.investigation.inquiry import (
    MAX_FINDINGS,
    MAX_QUOTES,
    MAX_REQUESTS,
    MIN_QUOTE_CHARACTERS,
    InvestigationSchema,
)
from mappa_core.coaching.investigation.options import InvestigatorOptions
from mappa_core.coaching.investigation.play import OUTLINE_CHARACTERS, Play
from mappa_core.coaching.investigation.reader import REQUEST_CHARACTERS, TURN_CHARACTERS, Shown
from mappa_core.coaching.prompt import NONCE_SLOT
from mappa_core.records import MAX_SCORE, Message, Scene
from mappa_core.tools.prompt_templates import create_prompt_environment
from mappa_core.tools.truncate import cut_middle

PROMPT_FOLDER, TEMPLATES = "prompts", ("system.md", "play.md", "question.md", "again.md")
NOTES_CHARACTERS = 6_000
"""Maximum characters of a model's notes."""
MAX_REPLY_CHARACTERS = 4_000
"""Characters of an invalid reply that is sent back."""
MAX_TRUTH_CHARACTERS = 4_000
TASK_CHARACTERS = 6_000
"""Characters of the task that every question shows; the rest can be read, as step 0."""
FRAME_CHARACTERS = 12_000
"""Room for what we say around the data: headings, fences, prefixes of lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, ready to be sent. `address` is a SHA-256 over all that affects the reply, but for the nonce."""

    messages: tuple[Message, ...]
    schema: InvestigationSchema
    address: str


class InvestigationPrompt:
    """Builds the questions about one play. They share one nonce, as the shared part would differ without it; only the
    model sees it, after all that it is shown was written."""

    def __init__(self, frames: Frames, scene: Scene, play: Play, task: Sequence[Shown], *, truth: str | None) -> None:
        """`scene` is the last one, `task` what is shown of the task."""
        team = scene.team or {scene.step.agent: scene.role}
        self._frames = frames
        self._nonce = frames.new_nonce()
        self._agents = play.agents
        self._team = tuple(dict.fromkeys((*team, *play.agents)))
        self._shared = frames.render(
            "play.md",
            mark=NONCE_SLOT,
            team=_fence(prefix_lines("\n".join(f"{name}: {role.brief}" for name, role in team.items()))),
            steps=len(play.agents),
            is_over=scene.later is not None,
            outcome=_outcome(scene),
            task=_render(task),
            truth=None if truth is None else _fence(prefix_lines(cut_middle(truth, MAX_TRUTH_CHARACTERS))),
            outline=_fence(prefix_lines("\n".join(play.outline))),
        )
        self.cache_key = hashlib.sha256(f"{frames.template_hash}\0{self._shared}".encode()).hexdigest()

    def ask(
        self,
        notes: str,
        results: Sequence[Shown],
        *,
        steps_shown: Sequence[int],
        calls_left: int,
        characters_left: int,
        must_answer: bool,
    ) -> Question:
        """Build the next question: with the model's `notes`, and the `results` of its last requests."""
        tail = self._frames.render(
            "question.md",
            notes=_fence(prefix_lines(cut_middle(notes, NOTES_CHARACTERS))) if notes.strip() else None,
            results=_render(results),
            steps_shown=cut_middle(", ".join(map(str, steps_shown)), NOTES_CHARACTERS),
            calls_left=calls_left,
            characters_left=characters_left,
            must_answer=must_answer,
        )
        schema = InvestigationSchema(agents=self._agents, team=self._team, must_answer=must_answer)
        return self._question(self._shared + tail, schema)

    def ask_again(self, question: Question, reply: str, problem: str) -> Question:
        """Build the question that sends an invalid `reply` back; `problem` is in our own words."""
        bad = _fence(prefix_lines(cut_middle(reply, MAX_REPLY_CHARACTERS)))
        _, user = question.messages
        tail = self._frames.render("again.md", reply=bad, problem=problem)
        return self._question(user.content.replace(self._nonce, NONCE_SLOT) + tail, question.schema)

    def _question(self, text: str, schema: InvestigationSchema) -> Question:
        parts = (self._frames.template_hash, text, json.dumps(schema.json_schema))
        messages = (
            Message(role="system", content=self._frames.system),
            Message(role="user", content=text.replace(NONCE_SLOT, self._nonce)),
        )
        return Question(messages=messages, schema=schema, address=hashlib.sha256("\0".join(parts).encode()).hexdigest())


def max_question_characters(options: InvestigatorOptions) -> int:
    """The characters of the longest question, but for long titles and names."""
    texts = (OUTLINE_CHARACTERS, TASK_CHARACTERS, MAX_TRUTH_CHARACTERS, NOTES_CHARACTERS, TURN_CHARACTERS)
    requests = MAX_REQUESTS * REQUEST_CHARACTERS
    return len(Frames(options).system) + sum(texts) + requests + MAX_REPLY_CHARACTERS + FRAME_CHARACTERS


class Frames:
    """The templates of questions, compiled once. `system` is the message that is the same for all plays."""

    def __init__(self, options: InvestigatorOptions, new_nonce: Callable[[], str] = new_nonce) -> None:
        folder = Path(__file__).parent / PROMPT_FOLDER
        environment = create_prompt_environment(folder)
        self._templates = {name: environment.get_template(name) for name in TEMPLATES}
        self.new_nonce = new_nonce
        self.system = self.render(
            "system.md",
            categories=CATEGORIES,
            max_score=f"{MAX_SCORE:g}",
            max_requests=MAX_REQUESTS,
            max_findings=MAX_FINDINGS,
            max_quotes=MAX_QUOTES,
            min_quote=MIN_QUOTE_CHARACTERS,
            turn_characters=TURN_CHARACTERS,
            notes_characters=NOTES_CHARACTERS,
            calls=options.calls,
            characters=options.characters,
        ).strip()
        sources = ((folder / name).read_text(encoding="utf-8") for name in TEMPLATES[1:])
        self.template_hash = hashlib.sha256("\0".join((self.system, *sources)).encode()).hexdigest()

    def render(self, name: str, **values: Any) -> str:
        return self._templates[name].render(**values)


def _render(shown: Sequence[Shown]) -> str:
    parts = []
    for part in shown:
        data = "" if part.lines is None else "\n" + _fence(prefix_lines("\n".join(part.lines)))
        parts.append(part.title + data)
    return "\n\n".join(parts)


def _fence(lines: str) -> str:
    return fence_lines(lines, NONCE_SLOT)


def _outcome(scene: Scene) -> Mapping[str, str] | None:
    return None if scene.outcome is None else {quote_name(name): f"{value:g}" for name, value in scene.outcome.items()}
