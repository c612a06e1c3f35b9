"""The coach `investigator`: a model reads what it asks for of a play, within a budget, and quotes what it found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

from mappa_core.calls.work_deadline import restart_deadline
from mappa_core.coaching.delegating_coach import DelegatingCoach
from mappa_core.coaching.investigation.inquiry import Answer, Inquiry
from mappa_core.coaching.investigation.options import InvestigatorOptions
from mappa_core.coaching.investigation.play import LINE_CHARACTERS, build_play
from mappa_core.coaching.investigation.prompt import TASK_CHARACTERS, Frames, InvestigationPrompt, Question
from mappa_core.coaching.investigation.reader import LogReader, Shown
from mappa_core.coaching.llm_coach import LLMCoach, split_usage
from mappa_core.coaching.reply_parser import BadReply
from mappa_core.coaching.single_flight import SingleFlight
from mappa_core.config.schema import Use
from mappa_core.errors import CallError, CoachError, ConfigError
from mappa_core.protocols import Cassette, Coach
from mappa_core.records import NOBODY, Scene, Usage, Verdict

CALLS_TO_ANSWER = 2
"""Questions that are kept for the answer: one that asks for it, and one that sends an invalid one back."""


def build_investigator(options: InvestigatorOptions, build: Callable[[Use], Coach]) -> Coach:
    """Build the coach. Raises ConfigError if `options.model` is no coach that asks a model."""
    options.check()
    coach = build(options.model)
    if not isinstance(coach, LLMCoach):
        raise ConfigError(f"model: {options.model.use} asks no model; name the coach of a provider, such as openai")
    return Investigator(coach, options)


class Investigator(DelegatingCoach):
    """Judges the actions of one trajectory by one investigation, of several questions to the model of `coach`. The step
    that its answer accuses and the further suspects get its points; all other actions abstain, and so do all where the
    answer blames nobody for lack of proof. A reply that does not fit, or quotes what was not read, is sent back once;
    if that does not help, the verdicts have failed. The truth is shown only if all judged actions may be judged by it.

    With a cassette every question is sent once, as of LLMCoach: an investigation that was killed goes on where it was,
    and then reports the usage of its new questions alone.
    """

    def __init__(self, coach: LLMCoach, options: InvestigatorOptions) -> None:
        super().__init__({"model": coach})
        self._coach = coach
        self._options = options
        self._frames = Frames(options)
        self._cassette: Cassette | None = None
        self._single_flight: SingleFlight[_Turn] = SingleFlight()

    @property
    def by_trajectory(self) -> bool:
        return True

    def use_cassette(self, cassette: Cassette) -> None:
        self._cassette = cassette

    async def score(self, scene: Scene) -> Verdict:
        (verdict,) = await self.review([scene])
        return verdict

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        if not scenes:
            return []
        # Without hindsight it is the last action that knows the most of the play, in whatever order they are given.
        last = max(scenes, key=lambda scene: len(scene.earlier))
        truths, reference = _known_truths(scenes)
        play = build_play(last, truths)
        reader = LogReader(play, self._options.characters)
        task = reader.begin(TASK_CHARACTERS)
        prompt = InvestigationPrompt(self._frames, last, play, task, truth=reference)
        investigation = _Investigation(self._options, prompt, reader, self._ask_once)
        await investigation.run()
        steps = (*last.earlier, last.step, *(last.later or ()))
        numbers = {step.id: number for number, step in enumerate(steps, 1)}
        judged = [investigation.judge(numbers[scene.step.id]) for scene in scenes]
        return [
            replace(
                verdict,
                usage=usage,
                question=f"{investigation.address}/{numbers[scene.step.id]}",
                template_hash=self._frames.template_hash,
                model=investigation.model,
                seed=self._coach.options.seed,
                raw_reply=investigation.raw_reply,
                replayed=investigation.is_replayed,
            )
            for scene, verdict, usage in zip(scenes, judged, split_usage(investigation.usage, len(scenes)), strict=True)
        ]

    async def _ask_once(self, prompt: InvestigationPrompt, question: Question, reader: LogReader, calls: int) -> _Turn:
        """Ask `question`, by at most `calls` calls, unless the cassette has its reply."""
        if self._cassette is None:
            return await self._ask(prompt, question, reader, calls)
        address = hashlib.sha256(f"{question.address}\n{self._coach.settings_key}".encode()).hexdigest()
        recorded = self._cassette.get(address)
        if recorded is not None:
            return _Turn.from_verdict(recorded, question)
        turn, is_paid = await self._single_flight.call(
            address, lambda: self._ask_and_record(address, prompt, question, reader, calls)
        )
        # Another investigation of the same play counts the call.
        return replace(turn, is_replayed=True) if is_paid else turn

    async def _ask_and_record(
        self, address: str, prompt: InvestigationPrompt, question: Question, reader: LogReader, calls: int
    ) -> _Turn:
        turn = await self._ask(prompt, question, reader, calls)
        if self._cassette is not None and turn.error is None:
            self._cassette.put(address, turn.to_verdict(address))
        return turn

    async def _ask(self, prompt: InvestigationPrompt, question: Question, reader: LogReader, calls: int) -> _Turn:
        turn = await self._call(prompt, question, reader)
        if turn.problem and calls > 1:
            restart_deadline()
            again = await self._call(prompt, prompt.ask_again(question, turn.text, turn.problem), reader)
            paid = [usage for usage in (turn.usage, again.usage) if usage is not None]
            turn = replace(again, calls=2, usage=reduce(add, paid) if paid else None)
        if turn.problem:
            return replace(turn, error=f"no reply fits, also when sent back: {turn.problem}")
        return turn

    async def _call(self, prompt: InvestigationPrompt, question: Question, reader: LogReader) -> _Turn:
        schema = question.schema.json_schema
        try:
            reply = await self._coach.complete(
                question.messages, schema, address=question.address, cache_key=prompt.cache_key
            )
        except CallError as error:
            # A garbled answer was paid, and nobody knows how much.
            return _Turn(error=str(error), usage=Usage(calls=1) if error.kind == "garbled" else None)
        turn = _Turn(text=reply.text, usage=reply.usage or Usage(calls=1), model=reply.model, raw=reply.raw)
        if reply.stop == "blocked":
            (provider,) = self._coach.providers
            return replace(turn, refusal=f"{provider.name} would not answer: {reply.detail or 'no reason was given'}")
        if reply.stop == "length":
            limit = f"{self._coach.options.max_tokens} tokens (max_tokens), thinking included"
            return replace(turn, error=f"the reply was cut off at its limit of {limit}")
        try:
            parsed = question.schema.parse(reply.text)
            if isinstance(parsed, Answer):
                reader.check_quotes(parsed)
        except BadReply as error:
            return replace(turn, problem=str(error))
        return replace(turn, parsed=parsed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """What came of one question: `parsed`, or a `refusal`, or the `problem` of an invalid reply, or an `error`. `calls`
    are those of the budget."""

    text: str = ""
    parsed: Inquiry | Answer | None = None
    refusal: str | None = None
    problem: str | None = None
    error: str | None = None
    calls: int = 1
    usage: Usage | None = None
    model: str | None = None
    raw: str | None = None
    is_replayed: bool = False

    def to_verdict(self, address: str) -> Verdict:
        """A cassette holds verdicts alone: one that judges nothing, with the reply as its reason."""
        return Verdict(
            status="abstained",
            reasoning=json.dumps({"reply": self.text, "refusal": self.refusal, "calls": self.calls}),
            usage=self.usage,
            question=address,
            model=self.model,
            raw_reply=self.raw,
        )

    @classmethod
    def from_verdict(cls, verdict: Verdict, question: Question) -> _Turn:
        """Raises CoachError for a verdict that is no reply of an investigation."""
        try:
            kept = json.loads(verdict.reasoning)
            text, refusal, calls = kept["reply"], kept["refusal"], int(kept["calls"])
            # Its quotes were checked when it was recorded, against the same log.
            parsed = question.schema.parse(text) if refusal is None else None
        except (ValueError, KeyError, TypeError, BadReply) as error:
            raise CoachError("the cassette holds something else at the address of an investigation") from error
        return cls(
            text=text,
            parsed=parsed,
            refusal=refusal,
            calls=calls,
            usage=verdict.usage,
            model=verdict.model,
            raw=verdict.raw_reply,
            is_replayed=True,
        )


@dataclass(slots=True)
class _Investigation:
    """One investigation: asks until there is an answer, and makes verdicts of it."""

    options: InvestigatorOptions
    prompt: InvestigationPrompt
    reader: LogReader
    ask: Callable[[InvestigationPrompt, Question, LogReader, int], Awaitable[_Turn]]
    turns: list[_Turn] = field(default_factory=list)
    address: str = ""
    fault: str | None = None

    async def run(self) -> None:
        notes: str = ""
        results: Sequence[Shown] = ()
        while True:
            question = self._next_question(notes, results)
            self.address = self.address or question.address
            # An investigation takes as many times a verdict's time as it has questions.
            restart_deadline()
            try:
                turn = await self.ask(self.prompt, question, self.reader, self._calls_left)
            except CoachError as error:
                self.fault = str(error)
                return
            self.turns.append(turn)
            if not isinstance(turn.parsed, Inquiry):
                self.fault = turn.error
                return
            notes, results = turn.parsed.notes, self.reader.carry_out(turn.parsed.requests)

    def judge(self, number: int) -> Verdict:
        """The verdict on a step."""
        if self.fault is not None:
            return Verdict.failed(self.fault)
        last = self.turns[-1]
        if last.refusal is not None:
            return Verdict.abstained(last.refusal)
        assert isinstance(last.parsed, Answer)
        return judge_step(last.parsed, number)

    @property
    def is_replayed(self) -> bool:
        return bool(self.turns) and all(turn.is_replayed for turn in self.turns)

    @property
    def usage(self) -> Usage | None:
        """What was paid now; of an investigation that was replayed as a whole, what it had cost."""
        paid = [
            turn.usage for turn in self.turns if turn.usage is not None and (self.is_replayed or not turn.is_replayed)
        ]
        return reduce(add, paid) if paid else None

    @property
    def model(self) -> str | None:
        return self.turns[-1].model if self.turns else None

    @property
    def raw_reply(self) -> str | None:
        return self.turns[-1].raw if self.turns else None

    @property
    def _calls_left(self) -> int:
        return self.options.calls - sum(turn.calls for turn in self.turns)

    def _next_question(self, notes: str, results: Sequence[Shown]) -> Question:
        left, characters = self._calls_left, self.reader.characters_left
        return self.prompt.ask(
            notes,
            results,
            steps_shown=self.reader.steps_shown,
            calls_left=left,
            characters_left=characters,
            # Not a whole line of the log can be read any more.
            must_answer=left <= CALLS_TO_ANSWER or characters <= LINE_CHARACTERS,
        )


def judge_step(answer: Answer, number: int) -> Verdict:
    """Make the verdict on a step of what `answer` says of it."""
    place = next((place for place, finding in enumerate(answer.findings) if finding.step == number), None)
    if place is None:
        if answer.blame is None:
            return Verdict.abstained(f"It cannot be told who is to blame. {answer.reason}")
        return Verdict.abstained("The investigation does not judge this action.")
    finding, is_first = answer.findings[place], place == 0
    quotes = "\n".join(f"{_name(quote.step)}: “{quote.text}”" for quote in finding.quotes)
    reasons = (answer.reason, finding.reason, quotes) if is_first else (finding.reason, quotes)
    return Verdict(
        status="abstained" if answer.blame is None or finding.score is None else "scored",
        score=None if answer.blame is None else finding.score,
        reasoning="\n\n".join(reason for reason in reasons if reason.strip()),
        blame=answer.blame if is_first or answer.blame == NOBODY else None,
        category=answer.category if is_first else None,
        # In their order, which need not be that of their points.
        suspicion=None if answer.blame == NOBODY else float(len(answer.findings) - place),
    )


def _name(step: int) -> str:
    return f"step {step}" if step else "the task"


def _known_truths(scenes: Sequence[Scene]) -> tuple[dict[str, str], str | None]:
    """What the workflow reveals of steps, by their ids, and the reference of the task: nothing unless all of `scenes`
    show the truth, as one investigation shows the same to the judgement of all."""
    if any(scene.task.reference is None for scene in scenes):
        return {}, None
    truths = {scene.step.id: scene.truth for scene in scenes if scene.truth is not None}
    return truths, None if truths else scenes[-1].task.reference
