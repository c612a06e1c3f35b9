"""A coach that asks a model, over a transport that answers by script: what is asked, paid, kept and made of replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from structlog.testing import capture_logs

from mappa.testing import CoachContract, load_plugins
from mappa_core import (
    Coach,
    Completion,
    ConfigError,
    Message,
    Offer,
    PluginError,
    Registry,
    Role,
    Scene,
    Step,
    Task,
    Usage,
    Verdict,
    hookimpl,
)
from mappa_core.calls.options import Price
from mappa_core.coach import Cassette
from mappa_core.coaching.llm_coach import LLMCoach, llm_coach_offer
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.prompt import CoachPrompt, PromptBuilder
from mappa_core.transport import CallError, CallFault, Provider, Reply, Request

ONCE = replace(LLMCoachOptions().limits, attempts=1)
TEAM = {"solver": Role(brief="solves"), "verifier": Role(brief="checks")}


def judged(score: object = 7, reasoning: str = "it adds", blame: str | None = "nobody", **more: object) -> str:
    return json.dumps({**more, "reasoning": reasoning, "blame": blame, "score": score})


def actions(*scores: object) -> str:
    entries = (json.loads(judged(score, f"reason {place}", action=place + 1)) for place, score in enumerate(scores))
    return json.dumps({"actions": list(entries)})


def replied(text: str, **changes: Any) -> Reply:
    usage = Usage(calls=1, prompt_tokens=1000, completion_tokens=100, cached_tokens=10, thinking_tokens=30)
    return replace(Reply(text=text, stop="end", model="model-1-0711", raw=f"raw {text}", usage=usage), **changes)


OpenCassette = Callable[[str], AbstractContextManager[Cassette]]
Answer = Reply | Exception | str
Script = Callable[[Request], Answer]


@dataclass
class Options:
    model: str = "model-1"
    effort: str = "low"
    api_key_env: str = "SCRIPTED_KEY"


class Scripted:
    """A transport that answers by a list, the last of it for ever, or by a function of the request."""

    host = "nowhere.test"

    def __init__(self, *answers: Answer, script: Script | None = None, options: Options | None = None) -> None:
        self.answers = answers
        self.script = script
        self.model = (options or Options()).model
        self.requests: list[Request] = []
        self.closed = False

    async def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        place = min(len(self.requests), len(self.answers)) - 1
        answer = self.script(request) if self.script else self.answers[place]
        if isinstance(answer, Exception):
            raise answer
        return replied(answer) if isinstance(answer, str) else answer

    async def count(self, messages: Sequence[Message]) -> int | None:
        return None

    async def close(self) -> None:
        self.closed = True


def coach_on(transport: Any, **options: Any) -> LLMCoach:
    offer = llm_coach_offer(Offer("scripted", lambda chosen: transport, Options))
    coach = offer.build(offer.options(**{"limits": ONCE, **options}))
    assert isinstance(coach, LLMCoach)
    return coach


def step(position: int = 0, text: str = "The sum is four.") -> Step:
    return Step(
        id=f"t/{position:03d}",
        agent=("solver", "verifier")[position % 2],
        turn=position // 2,
        position=position,
        policy="p",
        messages=(Message(role="user", content="What is 2 + 2?"),),
        reply=Message(role="assistant", content=text),
        completion=Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop"),
    )


def scene(position: int = 0, text: str = "The sum is four.") -> Scene:
    earlier = tuple(step(place) for place in range(position))
    one = step(position, text)
    return Scene(task=Task(id="t", prompt="What is 2 + 2?"), role=TEAM[one.agent], step=one, team=TEAM, earlier=earlier)


SCENES = [scene(0), scene(1), scene(2)]


def text_of(request: Request) -> str:
    return "\n".join(message.content for message in request.messages)


# One action


async def test_verdict_records_question_model_reply_and_usage() -> None:
    transport = Scripted(judged(6.5, blame="solver"))
    coach = coach_on(transport, price=Price(input=2.0, output=10.0), seed=11, temperature=0.5, max_tokens=900)
    verdict = await coach.score(scene())
    (request,) = transport.requests
    assert (verdict.status, verdict.score, verdict.blame, verdict.reasoning) == ("scored", 6.5, "solver", "it adds")
    assert (verdict.model, verdict.seed, verdict.replayed) == ("model-1-0711", 11, False)
    assert verdict.raw_reply == f"raw {judged(6.5, blame='solver')}"
    assert verdict.usage == Usage(
        calls=1, prompt_tokens=1000, completion_tokens=100, cached_tokens=10, thinking_tokens=30, usd=0.003
    )
    question = await PromptBuilder(LLMCoachOptions()).build(scene())
    assert verdict.template_hash == question.template_hash
    assert verdict.question is not None
    assert len(verdict.question) == 64
    assert (request.answer, request.seed, request.temperature, request.max_tokens) == ("schema", 11, 0.5, 900)
    assert request.schema is not None
    assert request.schema["properties"]["blame"]["anyOf"][0]["enum"] == ["solver", "verifier", "nobody"]
    assert "The sum is four." in text_of(request)


async def test_requests_of_one_agent_share_a_cache_key() -> None:
    transport = Scripted(judged())
    coach = coach_on(transport)
    for position in range(3):
        await coach.score(scene(position))
    solver, verifier, solver_again = (request.cache_key for request in transport.requests)
    assert solver == solver_again != verifier
    assert transport.requests[0].messages[0] == transport.requests[2].messages[0]


async def test_a_correction_is_asked_for_and_kept() -> None:
    transport = Scripted(judged(2, correction="2 + 2 = 4"))
    verdict = await coach_on(transport, correction=True).score(scene())
    assert verdict.correction == "2 + 2 = 4"


async def test_abstained_verdict_names_its_reason() -> None:
    verdict = await coach_on(Scripted(judged(None, "there is no text"))).score(scene())
    assert (verdict.status, verdict.score, verdict.reasoning) == ("abstained", None, "there is no text")


async def test_a_reply_that_does_not_fit_is_sent_back_once_with_the_evidence() -> None:
    bad = judged("8/10", reasoning="canary-words")
    transport = Scripted(bad, judged(8))
    verdict = await coach_on(transport).score(scene())
    first, second = transport.requests
    assert verdict.score == 8.0
    assert verdict.raw_reply == f"raw {judged(8)}"
    assert "The sum is four." in text_of(second)
    assert "canary-words" in text_of(second)
    assert "`score` must be a number from 0 to 10" in text_of(second)
    assert (second.schema, second.answer, second.cache_key) == (first.schema, first.answer, first.cache_key)


async def test_think_text_before_the_reply_is_no_part_of_it() -> None:
    transport = Scripted(f"<think>{judged(10)}</think>\n{judged(6)}")
    verdict = await coach_on(transport).score(scene())
    assert (verdict.status, verdict.score, len(transport.requests)) == ("scored", 6.0, 1)
    assert verdict.raw_reply is not None
    assert judged(10) in verdict.raw_reply


async def test_a_thought_that_never_ends_is_a_reply_that_does_not_fit() -> None:
    transport = Scripted(f"<think>{judged(10)}", f"<think>{judged(10)}")
    verdict = await coach_on(transport).score(scene())
    assert (verdict.score, verdict.error) == (None, "no reply fits, also when sent back: it is empty")
    assert len(transport.requests) == 2


async def test_both_calls_of_a_repair_are_paid() -> None:
    verdict = await coach_on(Scripted("what?", judged(8)), price=Price(input=2.0, output=10.0)).score(scene())
    assert verdict.usage == Usage(
        calls=2, prompt_tokens=2000, completion_tokens=200, cached_tokens=20, thinking_tokens=60, usd=0.006
    )


async def test_usage_of_a_repair_is_unknown_if_one_call_is_unknown() -> None:
    silent = replied("what?", usage=None)
    verdict = await coach_on(Scripted(silent, judged(8)), price=Price(input=2.0, output=10.0)).score(scene())
    assert verdict.usage == Usage(calls=2)


async def test_a_second_reply_that_does_not_fit_is_no_verdict() -> None:
    transport = Scripted("Score: 9", judged(11))
    verdict = await coach_on(transport).score(scene())
    assert len(transport.requests) == 2
    assert (verdict.status, verdict.score) == ("failed", None)
    assert verdict.error == (
        "no reply fits, also when sent back: `score` must be a number from 0 to 10, "
        "or null where the action cannot be judged"
    )
    assert verdict.raw_reply == f"raw {judged(11)}"
    assert verdict.usage is not None
    assert verdict.usage.calls == 2


async def test_a_blocked_reply_abstains_with_the_providers_reason() -> None:
    transport = Scripted(replied(judged(9), stop="blocked", detail="SAFETY: harassment"))
    verdict = await coach_on(transport).score(scene())
    assert len(transport.requests) == 1
    assert (verdict.status, verdict.score) == ("abstained", None)
    assert verdict.reasoning == "scripted would not answer: SAFETY: harassment"
    assert (verdict.raw_reply, verdict.usage is not None) == (f"raw {judged(9)}", True)


async def test_a_reply_that_was_cut_off_fails_and_names_the_limit() -> None:
    transport = Scripted(replied(judged(9)[:-9], stop="length"))
    verdict = await coach_on(transport, max_tokens=77).score(scene())
    assert len(transport.requests) == 1
    assert verdict.error == "the reply was cut off at its limit of 77 tokens (max_tokens), thinking included"
    assert verdict.usage is not None


@pytest.mark.parametrize("second", ["blocked", "length", "fault"])
async def test_a_repair_may_end_like_any_call(second: str) -> None:
    answers: dict[str, Answer] = {
        "blocked": replied("", stop="blocked"),
        "length": replied("{", stop="length"),
        "fault": CallError("server", "down"),
    }
    verdict = await coach_on(Scripted("what?", answers[second])).score(scene())
    expected = {
        "blocked": ("abstained", None, "scripted would not answer: no reason was given", 2),
        "length": (
            "failed",
            "the reply was cut off at its limit of 4096 tokens (max_tokens), thinking included",
            "",
            2,
        ),
        "fault": ("failed", "server: down", "", 1),
    }[second]
    assert verdict.usage is not None
    assert (verdict.status, verdict.error, verdict.reasoning, verdict.usage.calls) == expected
    assert verdict.raw_reply == {"blocked": "raw ", "length": "raw {", "fault": "raw what?"}[second]


@pytest.mark.parametrize("kind", [kind for kind in get_args(CallFault) if kind != "schema"])
async def test_a_call_that_fails_is_a_failed_verdict_that_says_why(kind: CallFault) -> None:
    transport = Scripted(CallError(kind, "the provider said so"))
    verdict = await coach_on(transport).score(scene())
    assert len(transport.requests) == 1
    assert (verdict.status, verdict.error) == ("failed", f"{kind}: the provider said so")
    # A garbled answer was paid, and nobody knows how much.
    assert verdict.usage == (Usage(calls=1) if kind == "garbled" else None)
    assert (verdict.raw_reply, verdict.model) == (None, None)
    assert verdict.question is not None


async def test_a_server_that_never_answers_is_a_failed_verdict() -> None:
    class Silent(Scripted):
        async def complete(self, request: Request) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError

    verdict = await coach_on(Silent(), limits=replace(ONCE, timeout_s=0.01)).score(scene())
    assert (verdict.status, verdict.error) == ("failed", "timeout: no reply within 0.01 s")


# A server that cannot do the schema


def without_schema(request: Request) -> Answer:
    return CallError("schema", "no grammar here") if request.answer == "schema" else judged(5)


async def test_json_mode_is_used_if_the_server_refuses_the_schema() -> None:
    transport = Scripted(script=without_schema)
    coach = coach_on(transport)
    with capture_logs() as logs:
        verdicts = [await coach.score(scene(position)) for position in range(3)]
    assert [verdict.score for verdict in verdicts] == [5.0, 5.0, 5.0]
    assert [request.answer for request in transport.requests] == ["schema", "json", "json", "json"]
    assert [request.schema is None for request in transport.requests] == [False, True, True, True]
    assert all(verdict.usage is not None and verdict.usage.calls == 1 for verdict in verdicts)
    assert logs == [
        {
            "event": "coach.without_schema",
            "coach": "scripted",
            "reason": "schema: no grammar here",
            "log_level": "warning",
        }
    ]


async def test_concurrent_refusals_of_the_schema_are_logged_once() -> None:
    all_asked = asyncio.Barrier(8)

    class Together(Scripted):
        async def complete(self, request: Request) -> Reply:
            if request.answer == "schema":
                await all_asked.wait()
            return await super().complete(request)

    coach = coach_on(Together(script=without_schema))
    with capture_logs() as logs:
        verdicts = await asyncio.gather(*(coach.score(scene(position)) for position in range(8)))
    assert [verdict.score for verdict in verdicts] == [5.0] * 8
    assert len(logs) == 1


async def test_a_server_that_cannot_do_json_either_is_a_failed_verdict() -> None:
    transport = Scripted(CallError("schema", "nor that"))
    coach = coach_on(transport)
    with capture_logs() as logs:
        verdicts = [await coach.score(scene()), await coach.score(scene())]
    assert [verdict.error for verdict in verdicts] == ["schema: nor that"] * 2
    assert [request.answer for request in transport.requests] == ["schema", "json", "json"]
    assert len(logs) == 1


# Several actions by one call


async def test_a_review_is_one_call() -> None:
    transport = Scripted(actions(4, None, 6))
    verdicts = await coach_on(transport).review(SCENES)
    assert len(transport.requests) == 1
    assert [(verdict.status, verdict.score, verdict.reasoning) for verdict in verdicts] == [
        ("scored", 4.0, "reason 0"),
        ("abstained", None, "reason 1"),
        ("scored", 6.0, "reason 2"),
    ]
    addresses = [verdict.question for verdict in verdicts]
    assert len({address.rpartition("/")[0] for address in addresses if address}) == 1
    assert [address.rpartition("/")[2] for address in addresses if address] == ["1", "2", "3"]


async def test_a_review_never_shows_the_truth_of_one_agent_to_the_judge_of_another() -> None:
    knowing = replace(SCENES[1], task=replace(SCENES[1].task, reference="the truth"), truth="what is true")
    transport = Scripted(actions(4, 6), actions(5))
    verdicts = await coach_on(transport).review([SCENES[0], knowing, SCENES[2]])
    assert [verdict.score for verdict in verdicts] == [4.0, 5.0, 6.0]
    unknowing, told = map(text_of, transport.requests)
    assert "what is true" in told and "what is true" not in unknowing


async def test_usage_of_the_verdicts_of_a_review_sums_to_the_call() -> None:
    paid = Usage(calls=1, prompt_tokens=1001, completion_tokens=11, cached_tokens=None, thinking_tokens=2, usd=None)
    transport = Scripted(replied(actions(4, 5), usage=paid), replied(actions(4, 5, 6), usage=paid))
    verdicts = await coach_on(transport, price=Price(input=3.0, output=7.0)).review(SCENES)
    usages = [verdict.usage for verdict in verdicts if verdict.usage is not None]
    assert [usage.prompt_tokens for usage in usages] == [668, 667, 667]
    assert [usage.completion_tokens for usage in usages] == [8, 7, 7]
    assert [usage.thinking_tokens for usage in usages] == [2, 1, 1]
    assert [usage.calls for usage in usages] == [1, 1, 0]
    assert [usage.cached_tokens for usage in usages] == [None] * 3
    assert sum(usage.usd for usage in usages if usage.usd is not None) == pytest.approx(2 * (1001 * 3 + 11 * 7) / 1e6)


async def test_only_the_actions_that_did_not_fit_are_taken_from_the_second_reply() -> None:
    transport = Scripted(actions(4, 55, 6), actions(1, 2, 3))
    verdicts = await coach_on(transport).review(SCENES)
    assert [verdict.score for verdict in verdicts] == [4.0, 2.0, 6.0]
    assert [verdict.raw_reply for verdict in verdicts] == [
        f"raw {actions(4, 55, 6)}",
        f"raw {actions(1, 2, 3)}",
        f"raw {actions(4, 55, 6)}",
    ]
    assert "action 2: `score` must be a number from 0 to 10" in text_of(transport.requests[1])


async def test_an_action_that_fits_in_no_reply_fails_alone() -> None:
    verdicts = await coach_on(Scripted(actions(4, 55), actions(9, 66, 7))).review(SCENES)
    assert [verdict.score for verdict in verdicts] == [4.0, None, 7.0]
    assert verdicts[1].error is not None
    assert verdicts[1].error.startswith("no reply fits, also when sent back: action 2: `score`")


async def test_review_with_a_failed_repair_keeps_its_valid_verdicts() -> None:
    verdicts = await coach_on(Scripted(actions(4, 5), CallError("quota", "nothing left"))).review(SCENES)
    assert [verdict.score for verdict in verdicts] == [4.0, 5.0, None]
    assert verdicts[2].error == "quota: nothing left"


async def test_a_review_that_fails_is_failed_for_every_action() -> None:
    verdicts = await coach_on(Scripted(CallError("key", "refused"))).review(SCENES)
    assert [verdict.error for verdict in verdicts] == ["key: refused"] * 3


async def test_review_of_no_actions_makes_no_call() -> None:
    transport = Scripted(judged())
    assert list(await coach_on(transport).review([])) == []
    assert transport.requests == []


# The cassette


async def scored(open_cassette: OpenCassette, coach: Coach, shown: Scene, mode: str = "auto") -> Verdict:
    with open_cassette(mode) as cassette:
        coach.use_cassette(cassette)
        return await coach.score(shown)


async def test_stored_verdict_is_replayed_without_a_call(open_cassette: OpenCassette) -> None:
    first = await scored(open_cassette, coach_on(Scripted(judged(8))), scene())
    switched_off = Scripted(AssertionError("nobody is to be asked"))
    second = await scored(open_cassette, coach_on(switched_off), scene())
    assert second == replace(first, replayed=True)
    assert second == await scored(open_cassette, coach_on(switched_off), scene(), "replay")


async def test_mode_record_calls_again_despite_a_stored_verdict(open_cassette: OpenCassette) -> None:
    await scored(open_cassette, coach_on(Scripted(judged(8))), scene())
    verdict = await scored(open_cassette, coach_on(Scripted(judged(3))), scene(), "record")
    assert (verdict.score, verdict.replayed) == (3.0, False)
    kept = await scored(open_cassette, coach_on(Scripted(judged(9))), scene())
    assert (kept.score, kept.replayed) == (3.0, True)


async def test_replay_without_a_verdict_is_a_failed_verdict_that_says_what_to_do(open_cassette: OpenCassette) -> None:
    await scored(open_cassette, coach_on(Scripted(judged(8))), scene())
    transport = Scripted(judged(9))
    verdict = await scored(open_cassette, coach_on(transport), scene(text="another"), "replay")
    assert transport.requests == []
    assert verdict.status == "failed"
    assert "coach.cassette.mode=auto" in (verdict.error or "")


async def test_failed_verdicts_are_asked_for_again_and_abstained_verdicts_are_replayed(
    open_cassette: OpenCassette,
) -> None:
    assert (await scored(open_cassette, coach_on(Scripted(CallError("server", "down"))), scene())).status == "failed"
    assert (await scored(open_cassette, coach_on(Scripted(replied("", stop="length"))), scene())).status == "failed"
    blocked = await scored(open_cassette, coach_on(Scripted(replied("", stop="blocked"))), scene())
    assert (blocked.status, blocked.replayed) == ("abstained", False)
    again = await scored(open_cassette, coach_on(Scripted(judged(8))), scene())
    assert (again.status, again.replayed) == ("abstained", True)


async def test_verdict_stored_in_json_mode_is_replayed_by_a_new_coach(
    open_cassette: OpenCassette,
) -> None:
    with capture_logs():
        await scored(open_cassette, coach_on(Scripted(script=without_schema)), scene())
    verdict = await scored(open_cassette, coach_on(Scripted(AssertionError("nobody is to be asked"))), scene())
    assert (verdict.score, verdict.replayed) == (5.0, True)


def built(transport_options: dict[str, Any], **options: Any) -> tuple[Coach, list[Scripted]]:
    """A coach of a transport's offer, and the transport, as a run builds it."""
    transports: list[Scripted] = []

    def build(chosen: Any) -> Scripted:
        transports.append(Scripted(judged(8), options=chosen))
        return transports[-1]

    offer = llm_coach_offer(Offer("scripted", build, Options))
    return offer.build(offer.options(**{"limits": ONCE, **transport_options, **options})), transports


def shown_rubric(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "solver.md").write_text(text)
    return str(folder)


MISSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "model": ({"model": "model-2"}, {}),
    "an option of the transport": ({"effort": "high"}, {}),
    "schema": ({}, {"correction": True}),
    "temperature": ({}, {"temperature": 0.0}),
    "seed": ({}, {"seed": 1}),
    "max_tokens": ({}, {"max_tokens": 100}),
    "budget": ({}, {"budget": 20_000}),
}
HITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "name of the key": ({"api_key_env": "OTHER_KEY"}, {}),
    "limits": ({}, {"limits": replace(ONCE, attempts=2, concurrency=3)}),
    "price": ({}, {"price": Price(input=1.0, output=1.0)}),
    "batch": ({}, {"batch": "trajectory"}),
}


@pytest.mark.parametrize(("transport", "options"), MISSES.values(), ids=MISSES)
async def test_setting_that_affects_the_answer_misses_the_cassette(
    open_cassette: OpenCassette, transport: dict[str, Any], options: dict[str, Any]
) -> None:
    await scored(open_cassette, built({})[0], scene())
    coach, transports = built(transport, **options)
    transports[0].answers = (judged(3, **({"correction": None} if options.get("correction") else {})),)
    verdict = await scored(open_cassette, coach, scene())
    assert (verdict.score, verdict.replayed, len(transports[0].requests)) == (3.0, False, 1)


@pytest.mark.parametrize(("transport", "options"), HITS.values(), ids=HITS)
async def test_setting_without_effect_on_the_answer_hits_the_cassette(
    open_cassette: OpenCassette, transport: dict[str, Any], options: dict[str, Any]
) -> None:
    await scored(open_cassette, built({})[0], scene())
    coach, transports = built(transport, **options)
    verdict = await scored(open_cassette, coach, scene())
    assert (verdict.score, verdict.replayed, transports[0].requests) == (8.0, True, [])


async def test_changed_schema_with_unchanged_words_misses_the_cassette(monkeypatch: pytest.MonkeyPatch) -> None:
    class SameWords(PromptBuilder):
        async def build(self, scene: Scene) -> CoachPrompt:
            return replace(await super().build(scene), address="the same")

    monkeypatch.setattr("mappa_core.coaching.llm_coach.PromptBuilder", SameWords)
    coaches = [coach_on(Scripted("what?"), correction=correction) for correction in (False, True)]
    without, with_correction = [await coach.score(scene()) for coach in coaches]
    assert without.question != with_correction.question


async def test_changed_rubric_misses_the_cassette(open_cassette: OpenCassette, tmp_path: Path) -> None:
    one, other = (shown_rubric(tmp_path / name, name) for name in ("Be strict.", "Be mild."))
    for rubrics, replayed in ((one, False), (other, False), (one, True), (other, True)):
        assert (await scored(open_cassette, built({}, rubrics=rubrics)[0], scene())).replayed is replayed


CHANGED = {
    "reply": scene(text="The sum is five."),
    "task": replace(scene(), task=Task(id="t", prompt="What is 2 + 3?")),
    "truth": replace(scene(), task=Task(id="t", prompt="What is 2 + 2?", reference="4")),
    "team": replace(scene(), team={**TEAM, "coder": Role(brief="codes")}),
    "outcome": replace(scene(), later=(), outcome={"correct": 1.0}),
}


@pytest.mark.parametrize("shown", CHANGED.values(), ids=CHANGED)
async def test_changed_evidence_misses_the_cassette(open_cassette: OpenCassette, shown: Scene) -> None:
    await scored(open_cassette, coach_on(Scripted(judged(8))), scene())
    assert (await scored(open_cassette, coach_on(Scripted(judged(3))), shown)).score == 3.0


async def test_a_review_is_replayed_action_by_action(open_cassette: OpenCassette) -> None:
    with open_cassette("auto") as cassette:
        coach = coach_on(Scripted(actions(4, 55, 6), actions(4, 55, 6)))
        coach.use_cassette(cassette)
        first = await coach.review(SCENES)
        assert [verdict.score for verdict in first] == [4.0, None, 6.0]
        transport = Scripted(actions(1, 2, 3))
        other = coach_on(transport)
        other.use_cassette(cassette)
        second = await other.review(SCENES)
        assert [(verdict.score, verdict.replayed) for verdict in second] == [(4.0, True), (2.0, False), (6.0, True)]
        assert second[1].usage is not None
        assert (second[1].usage.calls, second[1].usage.prompt_tokens) == (1, 1000)
        third = await other.review(SCENES)
        assert [verdict.score for verdict in third] == [4.0, 2.0, 6.0]
        assert len(transport.requests) == 1


async def test_partly_stored_review_replays_its_stored_verdicts(open_cassette: OpenCassette) -> None:
    with open_cassette("auto") as cassette:
        coach = coach_on(Scripted(actions(4, 55, 6)))
        coach.use_cassette(cassette)
        await coach.review(SCENES)
    with open_cassette("replay") as cassette:
        coach = coach_on(Scripted(AssertionError("nobody is to be asked")))
        coach.use_cassette(cassette)
        assert [verdict.status for verdict in await coach.review(SCENES)] == ["scored", "failed", "scored"]


async def test_score_and_review_of_one_action_are_stored_apart(open_cassette: OpenCassette) -> None:
    with open_cassette("auto") as cassette:
        coach = coach_on(Scripted(judged(8), actions(3)))
        coach.use_cassette(cassette)
        assert (await coach.score(scene())).score == 8.0
        assert [verdict.score for verdict in await coach.review([scene()])] == [3.0]


# Equal questions at one time


class Held(Scripted):
    """Answers once it is let go, and remembers what was cancelled."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0

    async def complete(self, request: Request) -> Reply:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().complete(request)


async def test_equal_concurrent_questions_share_one_call(open_cassette: OpenCassette) -> None:
    transport = Held(judged(8))
    coach = coach_on(transport)
    with open_cassette("auto") as cassette:
        coach.use_cassette(cassette)
        asking = [asyncio.create_task(coach.score(scene())) for _ in range(5)]
        await transport.begun.wait()
        transport.go.set()
        verdicts = await asyncio.gather(*asking)
    assert len(transport.requests) == 1
    assert [verdict.score for verdict in verdicts] == [8.0] * 5
    assert [verdict.replayed for verdict in verdicts] == [False, True, True, True, True]


async def test_without_a_cassette_every_question_is_asked() -> None:
    transport = Scripted(judged(8), judged(6))
    coach = coach_on(transport)
    verdicts = await asyncio.gather(coach.score(scene()), coach.score(scene()))
    assert sorted(verdict.score or 0 for verdict in verdicts) == [6.0, 8.0]
    assert not any(verdict.replayed for verdict in verdicts)


async def test_a_failure_is_shared_too_and_asked_again_later(open_cassette: OpenCassette) -> None:
    transport = Held(CallError("server", "down"), judged(8))
    coach = coach_on(transport)
    with open_cassette("auto") as cassette:
        coach.use_cassette(cassette)
        asking = [asyncio.create_task(coach.score(scene())) for _ in range(3)]
        await transport.begun.wait()
        transport.go.set()
        assert [verdict.error for verdict in await asyncio.gather(*asking)] == ["server: down"] * 3
        assert len(transport.requests) == 1
        assert (await coach.score(scene())).score == 8.0


async def test_first_caller_can_cancel_while_others_wait(open_cassette: OpenCassette) -> None:
    transport = Held(judged(8))
    coach = coach_on(transport)
    with open_cassette("auto") as cassette:
        coach.use_cassette(cassette)
        first, second = (asyncio.create_task(coach.score(scene())) for _ in range(2))
        await transport.begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        transport.go.set()
        verdict = await second
    assert (verdict.score, verdict.replayed) == (8.0, False), "it is the one to whom the call is charged"
    assert (transport.cancelled, len(transport.requests)) == (0, 1)


async def test_call_without_waiting_callers_is_cancelled_and_the_next_question_calls_anew(
    open_cassette: OpenCassette,
) -> None:
    transport = Held(judged(8))
    coach = coach_on(transport)
    with open_cassette("auto") as cassette:
        coach.use_cassette(cassette)
        asking = [asyncio.create_task(coach.score(scene())) for _ in range(3)]
        await transport.begun.wait()
        for one in asking:
            one.cancel()
        later = asyncio.create_task(coach.score(scene()))
        await asyncio.gather(*asking, return_exceptions=True)
        transport.go.set()
        verdict = await later
    assert (verdict.score, verdict.replayed) == (8.0, False)
    assert (transport.cancelled, len(transport.requests)) == (1, 1)


async def test_a_transport_that_breaks_fails_the_verdicts_of_all_waiting_callers(open_cassette: OpenCassette) -> None:
    transport = Held(ZeroDivisionError("a bug"))
    coach = coach_on(transport)
    with open_cassette("auto") as cassette:
        coach.use_cassette(cassette)
        asking = [asyncio.create_task(coach.score(scene())) for _ in range(2)]
        await transport.begun.wait()
        transport.go.set()
        verdicts = await asyncio.gather(*asking)
    said = "connection: the client of scripted broke: ZeroDivisionError: a bug"
    assert [(verdict.status, (verdict.error or "").partition(" (")[0]) for verdict in verdicts] == [
        ("failed", said)
    ] * 2


# As an offer


def registry_with(build: Callable[[Any], Any]) -> Registry:
    """Core, and a plugin that offers the transport."""

    @hookimpl
    def mappa_transports() -> list[Offer[Any]]:
        return [Offer("scripted", build, Options)]

    plugin = ModuleType("mine")
    plugin.mappa_transports = mappa_transports  # type: ignore[attr-defined]
    return load_plugins(only=(), modules={"mine": plugin})


async def test_core_makes_a_coach_of_every_transport() -> None:
    transports: list[Scripted] = []

    def build(options: Any) -> Scripted:
        transports.append(Scripted(judged(8), options=options))
        return transports[-1]

    registry = registry_with(build)
    options = registry.offer("coaches", "scripted").options(model="model-9", batch="trajectory", price=Price(1.0, 2.0))
    coach = registry.build("coaches", "scripted", options)
    provider = Provider(name="scripted", model="model-9", host="nowhere.test", priced=True, reserves=True)
    assert coach.providers == (provider,)
    assert coach.by_trajectory
    assert [verdict.score for verdict in await coach.review([scene()])] == [None]
    await coach.close()
    assert transports[0].closed


def test_options_of_the_transport_and_of_core_stand_side_by_side() -> None:
    options: Any = llm_coach_offer(Offer("scripted", Scripted, Options)).options()
    assert (options.model, options.batch, options.limits.concurrency, options.price) == ("model-1", "step", 64, None)


@dataclass
class Clashing:
    seed: int = 0
    parts: list[str] = field(default_factory=list)


def test_an_option_that_both_have_is_refused() -> None:
    with pytest.raises(PluginError, match=r"Clashing has the option 'seed', which core adds itself"):
        llm_coach_offer(Offer("scripted", Scripted, Clashing))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "max_tokens": ({"max_tokens": 0}, "options.max_tokens: must be at least 1 and finite, not 0"),
    "temperature": ({"temperature": -0.1}, "options.temperature: must be at least 0 and finite, not -0.1"),
    "limits": ({"limits": replace(ONCE, attempts=0)}, "options.limits.attempts: must be at least 1"),
    "budget": ({"budget": 10}, "options.budget: must be at least 1000 and finite, not 10"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_options_out_of_range_are_refused_with_their_key(
    check_options: Callable[[Any], None], options: dict[str, Any], message: str
) -> None:
    offer = llm_coach_offer(Offer("scripted", Scripted, Options))
    with pytest.raises(ConfigError) as error:
        check_options(offer.options(**options))
    assert message in str(error.value)


def test_missing_rubric_folder_is_an_error_with_its_path() -> None:
    with pytest.raises(ConfigError, match="no/such/folder"):
        built({}, rubrics="no/such/folder")


class TestContract(CoachContract):
    scenes = tuple(SCENES)

    def coach(self) -> Coach:
        return coach_on(Scripted(script=lambda request: judged(len(text_of(request)) % 10)))
