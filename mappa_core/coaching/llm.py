"""A coach that asks a model, whoever provides it: question, cassette, call, parser, one repair."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import structlog

from mappa_core.calls.caller import Caller
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.question import Question, Questions
from mappa_core.coaching.sharing import Shared
from mappa_core.coaching.verdicts import BadReply, Form, Found
from mappa_core.errors import CallError, CoachError
from mappa_core.protocols import Answer, Cassette, Coach, Provider, Reply, Request
from mappa_core.records import Scene, Usage, Verdict

log = structlog.get_logger()


class LLMCoach(Coach):
    """Judges by one call of a model for an action (`score`), or for several of one trajectory (`review`).

    A reply that does not fit is sent back once, with the whole evidence. One that was cut off is not: it would be cut
    off at the same limit. What the provider or the model will not answer is `abstained`. Where a server cannot do the
    schema, the coach asks for JSON from then on; the parser is the same.

    With a cassette a question is asked once: equal questions at one time share a call, later ones are replayed. Without
    one every question is asked anew, so that a coach can be compared with itself.
    """

    def __init__(self, caller: Caller, questions: Questions, options: LLMCoachOptions, *, settings: str = "") -> None:
        """`settings` stands for all else that decides how the model answers: another text, other addresses."""
        self._caller = caller
        self._questions = questions
        self._options = options
        self._answer: Answer = "schema"
        self._cassette: Cassette | None = None
        self._shared: Shared[dict[int, Verdict]] = Shared()
        who = caller.provider
        how = (who.name, who.model, options.temperature, options.seed, options.max_tokens, settings)
        self._asked_how = json.dumps(how)

    async def score(self, scene: Scene) -> Verdict:
        (verdict,) = await self._judge(await self._questions.about(scene), self._form(scene))
        return verdict

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        """Judge all `scenes` by one call; what it cost is shared out evenly, in parts that add up to it."""
        if not scenes:
            return ()
        form = replace(self._form(*scenes), actions=len(scenes))
        return await self._judge(await self._questions.about_all(scenes), form)

    @property
    def by_trajectory(self) -> bool:
        return self._options.batch == "trajectory"

    @property
    def providers(self) -> tuple[Provider, ...]:
        return (self._caller.provider,)

    def keep_on(self, cassette: Cassette) -> None:
        self._cassette = cassette

    async def close(self) -> None:
        await self._caller.close()

    def _form(self, *scenes: Scene) -> Form:
        agents = (agent for scene in scenes for agent in (*scene.team, scene.step.agent))
        return Form(agents=tuple(dict.fromkeys(agents)), correction=self._options.correction)

    async def _judge(self, question: Question, form: Form) -> list[Verdict]:
        addresses = self._addresses(question, form)
        kept = {place: verdict for place, at in enumerate(addresses) if (verdict := self._kept(at)) is not None}
        wanted = {place: address for place, address in enumerate(addresses) if place not in kept}
        given = {**await self._asked(question, form, wanted), **kept} if wanted else kept
        return [given[place] for place in range(form.count)]

    def _addresses(self, question: Question, form: Form) -> list[str]:
        """Where the verdicts are kept: by all that decides the reply but how the server is made to give JSON, which a
        coach may learn only as it goes."""
        decides = "\n".join((question.address, self._asked_how, _schema_text(form)))
        address = hashlib.sha256(decides.encode()).hexdigest()
        if form.actions is None:
            return [address]
        return [f"{address}/{number}" for number in range(1, form.actions + 1)]

    def _kept(self, address: str) -> Verdict | None:
        if self._cassette is None:
            return None
        try:
            verdict = self._cassette.get(address)
        except CoachError as error:
            return Verdict.failed(str(error))
        return None if verdict is None else replace(verdict, replayed=True)

    async def _asked(self, question: Question, form: Form, wanted: Mapping[int, str]) -> dict[int, Verdict]:
        """New verdicts on the actions at the places of `wanted`, which says where each is kept."""
        if self._cassette is None:
            return await self._ask(question, form, wanted)
        key = next(iter(wanted.values()))
        given, paid = await self._shared.call(key, lambda: self._ask(question, form, wanted))
        return {place: replace(verdict, replayed=True) for place, verdict in given.items()} if paid else given

    async def _ask(self, question: Question, form: Form, wanted: Mapping[int, str]) -> dict[int, Verdict]:
        readings = [await self._read(question, form)]
        first = readings[0]
        if first.reply is not None and first.problem:
            again = self._questions.again(question, first.reply.text, first.problem)
            readings.append(await self._read(again, form))
        usages = _shares(_total(readings), len(wanted))
        given = {}
        for (place, address), usage in zip(wanted.items(), usages, strict=True):
            verdict, reply = _settled(readings, place)
            given[place] = replace(
                verdict,
                usage=usage,
                question=address,
                template_hash=question.template_hash,
                model=None if reply is None else reply.model,
                seed=self._options.seed,
                raw_reply=None if reply is None else reply.raw,
            )
            if self._cassette is not None and given[place].status != "failed":
                self._cassette.put(address, given[place])
        return given

    async def _read(self, question: Question, form: Form) -> _Reading:
        """Make one call and read its reply."""
        try:
            reply = await self._complete(question, form)
        except CallError as error:
            return _Reading(found=(Verdict.failed(str(error)),) * form.count)
        return _Reading(found=self._found(reply, form), reply=reply)

    async def _complete(self, question: Question, form: Form) -> Reply:
        request = self._request(question, form, self._answer)
        try:
            return await self._caller.complete(request)
        except CallError as error:
            if error.kind != "schema" or request.answer != "schema":
                raise
            if self._answer == "schema":
                self._answer = "json"
                log.warning("coach.without_schema", coach=self._caller.provider.name, reason=str(error))
        return await self._caller.complete(self._request(question, form, "json"))

    def _request(self, question: Question, form: Form, answer: Answer) -> Request:
        o = self._options
        return Request(
            messages=question.messages,
            answer=answer,
            schema=form.schema if answer == "schema" else None,
            max_tokens=o.max_tokens,
            temperature=o.temperature,
            seed=o.seed,
            cache_key=question.template_hash,
            timeout_s=o.limits.timeout_s,
        )

    def _found(self, reply: Reply, form: Form) -> tuple[Found, ...]:
        """What a reply says of each action."""
        if reply.stop == "blocked":
            why = f"{self._caller.provider.name} would not answer: {reply.detail or 'no reason was given'}"
            return (Verdict.abstained(why),) * form.count
        if reply.stop == "length":
            limit = f"{self._options.max_tokens} tokens (max_tokens), thinking included"
            return (Verdict.failed(f"the reply was cut off at its limit of {limit}"),) * form.count
        try:
            return form.parse(reply.text)
        except BadReply as error:
            return (error,) * form.count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What one call came to, for each action; `reply` is None where the call failed."""

    found: tuple[Found, ...]
    reply: Reply | None = None

    @property
    def problem(self) -> str:
        """What is wrong with the reply, empty where nothing is."""
        return "; ".join(dict.fromkeys(str(one) for one in self.found if isinstance(one, BadReply)))


def _settled(readings: Sequence[_Reading], place: int) -> tuple[Verdict, Reply | None]:
    """The verdict on the action at `place`, of the first reply that gives one, else of the last that should have; and
    the reply that explains it."""
    reading = next((one for one in readings if isinstance(one.found[place], Verdict)), readings[-1])
    found = reading.found[place]
    verdict = found if isinstance(found, Verdict) else Verdict.failed(f"no reply fits, also when sent back: {found}")
    return verdict, reading.reply or readings[0].reply


@lru_cache(maxsize=256)
def _schema_text(form: Form) -> str:
    return json.dumps(form.schema)


def _total(readings: Sequence[_Reading]) -> Usage | None:
    """What all replies took; None where there was none."""
    usages = [reading.reply.usage or Usage(calls=1) for reading in readings if reading.reply is not None]
    return sum(usages[1:], usages[0]) if usages else None


def _shares(usage: Usage | None, count: int) -> Sequence[Usage | None]:
    """`usage` in `count` parts that add up to it: whole numbers as even as they go, the larger parts first."""
    if usage is None or count == 1:
        return (usage,) * count
    return [
        Usage(
            calls=_share(usage.calls, place, count),
            prompt_tokens=_known_share(usage.prompt_tokens, place, count),
            completion_tokens=_known_share(usage.completion_tokens, place, count),
            cached_tokens=_known_share(usage.cached_tokens, place, count),
            thinking_tokens=_known_share(usage.thinking_tokens, place, count),
            usd=None if usage.usd is None else usage.usd / count,
        )
        for place in range(count)
    ]


def _share(amount: int, place: int, count: int) -> int:
    # By Hermite's identity these add up to the amount.
    return (amount + count - 1 - place) // count


def _known_share(amount: int | None, place: int, count: int) -> int | None:
    return None if amount is None else _share(amount, place, count)
