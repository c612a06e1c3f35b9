"""LLM coach for any provider: prompt, cassette, call, reply parser, one repair attempt."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import structlog

from mappa_core.calls.client import ProviderClient, derive_offer
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.prompt import CoachPrompt, PromptBuilder
from mappa_core.coaching.reply_parser import BadReply, ParsedVerdict, ReplySchema
from mappa_core.coaching.single_flight import SingleFlight
from mappa_core.config.agent_names import describe_name_fault
from mappa_core.errors import CallError, CoachError
from mappa_core.hookspecs import Offer
from mappa_core.protocols import Cassette, Coach, Provider, Reply, ReplyFormat, Request, Transport
from mappa_core.records import Message, Scene, Usage, Verdict

log = structlog.get_logger()


def llm_coach_offer(offer: Offer[Transport]) -> Offer[Coach]:
    """Build the offer of an LLM coach from a transport, under the same name. Raises PluginError like `derive_offer`."""
    # They are part of the cassette addresses. Names of environment variables affect no answer, nor does it how calls
    # are sent.
    affecting = [
        option.name
        for option in fields(offer.options)
        if not option.name.endswith("_env") and option.name != "batch_api"
    ]

    def build(client: ProviderClient, options: Any) -> Coach:
        settings = json.dumps({name: getattr(options, name) for name in affecting}, sort_keys=True, default=str)
        return LLMCoach(client, PromptBuilder(options, count=client.count), options, settings=settings)

    return derive_offer(offer, LLMCoachOptions, build)


class LLMCoach(Coach):
    """Judges one action (`score`) or several actions of one trajectory (`review`) by one model call. An invalid reply
    is sent back once; a truncated one is not, as it would be truncated at the same limit. A refusal is an `abstained`
    verdict. If a server does not support the schema, the coach requests plain JSON from then on. With a cassette every
    prompt is sent once: equal concurrent prompts share a call, later ones are replayed."""

    def __init__(
        self, caller: ProviderClient, prompt_builder: PromptBuilder, options: LLMCoachOptions, *, settings: str = ""
    ) -> None:
        """`settings` identifies all other settings that affect the answers: it is part of the cassette addresses."""
        self._caller = caller
        self._prompt_builder = prompt_builder
        self._options = options
        self._answer: ReplyFormat = "schema"
        self._cassette: Cassette | None = None
        self._single_flight: SingleFlight[dict[int, Verdict]] = SingleFlight()
        who = (caller.provider.name, caller.provider.model)
        self._settings_key = json.dumps((*who, options.temperature, options.seed, options.max_tokens, settings))

    @property
    def settings_key(self) -> str:
        """The model and all settings that affect its answers, for addresses of a cassette."""
        return self._settings_key

    @property
    def options(self) -> LLMCoachOptions:
        return self._options

    async def score(self, scene: Scene) -> Verdict:
        (verdict,) = await self._judge(await self._prompt_builder.build(scene), self._schema_for(scene))
        return verdict

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        """Judge all `scenes` by one call, or by two if only some show the truth, as a call shows the same to all. The
        usage of a call is split evenly, in parts that add up to it."""
        groups: dict[bool, dict[int, Scene]] = {}
        for place, scene in enumerate(scenes):
            groups.setdefault(scene.task.reference is None, {})[place] = scene
        reviews = await asyncio.gather(*(self._review(list(group.values())) for group in groups.values()))
        by_place: dict[int, Verdict] = {}
        for group, verdicts in zip(groups.values(), reviews, strict=True):
            by_place.update(zip(group, verdicts, strict=True))
        return [by_place[place] for place in range(len(scenes))]

    @property
    def by_trajectory(self) -> bool:
        return self._options.batch == "trajectory"

    @property
    def providers(self) -> tuple[Provider, ...]:
        return (self._caller.provider,)

    def use_cassette(self, cassette: Cassette) -> None:
        self._cassette = cassette

    def open_batches(self, folder: Path) -> None:
        self._caller.open_batches(folder)

    async def close(self) -> None:
        await self._caller.close()

    async def _review(self, scenes: Sequence[Scene]) -> list[Verdict]:
        schema = replace(self._schema_for(*scenes), actions=len(scenes))
        return await self._judge(await self._prompt_builder.build_for_trajectory(scenes), schema)

    def _schema_for(self, *scenes: Scene) -> ReplySchema:
        agents = tuple(dict.fromkeys(agent for scene in scenes for agent in (*scene.team, scene.step.agent)))
        # Also of stored actions, whose names no workflow has declared.
        if fault := describe_name_fault(agents):
            raise CoachError(fault)
        return ReplySchema(agents=agents, correction=self._options.correction)

    async def _judge(self, prompt: CoachPrompt, schema: ReplySchema) -> list[Verdict]:
        addresses = self._cassette_addresses(prompt, schema)
        replayed: dict[int, Verdict] = {}
        missing: dict[int, str] = {}
        for place, address in enumerate(addresses):
            verdict = self._replay(address)
            if verdict is None:
                missing[place] = address
            else:
                replayed[place] = verdict
        # The whole prompt is sent if any is missing; verdicts that are on the cassette stay as they are.
        asked = await self._ask_once(prompt, schema, missing) if missing else {}
        verdicts = {**asked, **replayed}
        return [verdicts[place] for place in range(schema.count)]

    def _cassette_addresses(self, prompt: CoachPrompt, schema: ReplySchema) -> list[str]:
        """Return the address of each verdict: a hash of all that affects the reply, except how JSON is enforced."""
        settings = "\n".join((prompt.address, self._settings_key, json.dumps(schema.json_schema)))
        address = hashlib.sha256(settings.encode()).hexdigest()
        if schema.actions is None:
            return [address]
        return [f"{address}/{number}" for number in range(1, schema.actions + 1)]

    def _replay(self, address: str) -> Verdict | None:
        if self._cassette is None:
            return None
        try:
            verdict = self._cassette.get(address)
        except CoachError as error:
            return Verdict.failed(str(error))
        return None if verdict is None else replace(verdict, replayed=True)

    async def _ask_once(
        self, prompt: CoachPrompt, schema: ReplySchema, missing: Mapping[int, str]
    ) -> dict[int, Verdict]:
        """Return new verdicts on the actions of `missing` (index -> cassette address); concurrent calls are shared."""
        if self._cassette is None:
            return await self._ask(prompt, schema, missing)
        # The first address stands for all: equal prompts have equal addresses.
        key = next(iter(missing.values()))
        verdicts, is_paid = await self._single_flight.call(key, lambda: self._ask(prompt, schema, missing))
        if not is_paid:
            return verdicts
        # Another waiter got them first, and its verdicts count the call.
        return {place: replace(verdict, replayed=True) for place, verdict in verdicts.items()}

    async def _ask(self, prompt: CoachPrompt, schema: ReplySchema, missing: Mapping[int, str]) -> dict[int, Verdict]:
        replies = [await self._call(prompt, schema)]
        first = replies[0]
        if first.reply is not None and first.problem:
            repair = self._prompt_builder.build_repair(prompt, first.reply.text, first.problem)
            replies.append(await self._call(repair, schema))
        # Among the missing verdicts alone: those on the cassette were paid for when they were recorded.
        paid = [parsed.paid for parsed in replies if parsed.paid is not None]
        usages = split_usage(reduce(add, paid) if paid else None, len(missing))
        verdicts = {}
        for (place, address), usage in zip(missing.items(), usages, strict=True):
            verdict, reply = _choose_verdict(replies, place)
            verdicts[place] = replace(
                verdict,
                usage=usage,
                question=address,
                template_hash=prompt.template_hash,
                model=None if reply is None else reply.model,
                seed=self._options.seed,
                raw_reply=None if reply is None else reply.raw,
            )
            if self._cassette is not None and verdicts[place].status != "failed":
                self._cassette.put(address, verdicts[place])
        return verdicts

    async def _call(self, prompt: CoachPrompt, schema: ReplySchema) -> _ParsedReply:
        try:
            reply = await self.complete(
                prompt.messages, schema.json_schema, address=prompt.address, cache_key=prompt.template_hash
            )
        except CallError as error:
            # A garbled answer was paid, and nobody knows how much.
            paid = Usage(calls=1) if error.kind == "garbled" else None
            return _ParsedReply(outcomes=(Verdict.failed(str(error)),) * schema.count, paid=paid)
        return _ParsedReply(outcomes=self._parse_reply(reply, schema), reply=reply, paid=reply.usage or Usage(calls=1))

    async def complete(
        self, messages: tuple[Message, ...], schema: Mapping[str, Any], *, address: str, cache_key: str
    ) -> Reply:
        """Ask the model, with the coach's options, for a reply that matches `schema`, or for any JSON once its server
        refuses schemas. `address` and `cache_key` are those of Request. Raises CallError."""
        options = self._options
        request = Request(
            messages=messages,
            answer=self._answer,
            schema=schema if self._answer == "schema" else None,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            seed=options.seed,
            cache_key=cache_key,
            timeout_s=options.limits.timeout_s,
            address=address,
        )
        try:
            return await self._caller.complete(request)
        except CallError as error:
            if error.kind != "schema" or request.answer != "schema":
                raise
            # Concurrent calls fail alike; the first of them switches and warns.
            if self._answer == "schema":
                self._answer = "json"
                log.warning("coach.without_schema", coach=self._caller.provider.name, reason=str(error))
        return await self._caller.complete(replace(request, answer="json", schema=None))

    def _parse_reply(self, reply: Reply, schema: ReplySchema) -> tuple[ParsedVerdict, ...]:
        if reply.stop == "blocked":
            why = f"{self._caller.provider.name} would not answer: {reply.detail or 'no reason was given'}"
            return (Verdict.abstained(why),) * schema.count
        if reply.stop == "length":
            limit = f"{self._options.max_tokens} tokens (max_tokens), thinking included"
            return (Verdict.failed(f"the reply was cut off at its limit of {limit}"),) * schema.count
        try:
            return schema.parse(reply.text)
        except BadReply as error:
            return (error,) * schema.count


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedReply:
    """The outcome of one call for each action; `reply` is None if the call failed, `paid` if nothing was answered."""

    outcomes: tuple[ParsedVerdict, ...]
    reply: Reply | None = None
    paid: Usage | None = None

    @property
    def problem(self) -> str:
        """What is wrong with the reply; empty if it is valid."""
        problems = [str(outcome) for outcome in self.outcomes if isinstance(outcome, BadReply)]
        return "; ".join(dict.fromkeys(problems))


def _choose_verdict(replies: Sequence[_ParsedReply], place: int) -> tuple[Verdict, Reply | None]:
    """Return the verdict on the action at `place` from the first reply that has one, else the error of the last reply;
    and the reply that it comes from."""
    parsed = next((reply for reply in replies if isinstance(reply.outcomes[place], Verdict)), replies[-1])
    verdict = parsed.outcomes[place]
    if isinstance(verdict, BadReply):
        verdict = Verdict.failed(f"no reply fits, also when sent back: {verdict}")
    return verdict, parsed.reply or replies[0].reply


def split_usage(usage: Usage | None, count: int) -> Sequence[Usage | None]:
    """Split `usage` into `count` parts that add up to it: integers as even as possible, the larger parts first."""
    if usage is None or count == 1:
        return (usage,) * count
    usd = None if usage.usd is None else usage.usd / count
    amounts = {name: value for name, value in asdict(usage).items() if name != "usd" and value is not None}
    # ceil((amount - place) / count): by Hermite's identity the shares add up to the amount.
    return [
        Usage(**{name: (amount + count - 1 - place) // count for name, amount in amounts.items()}, usd=usd)
        for place in range(count)
    ]
