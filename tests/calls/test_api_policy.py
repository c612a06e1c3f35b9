"""Policies behind an API: what they are shown, and what becomes of the reply."""

from dataclasses import dataclass, fields, is_dataclass
from random import Random

import pytest
from omegaconf import OmegaConf

from mappa.testing import load_plugins
from mappa_core import (
    Completion,
    ConfigError,
    Message,
    Offer,
    PluginError,
    PromptTooLong,
    Sampling,
    ToolCall,
    ToolSpec,
    hookimpl,
)
from mappa_core.calls.api_policy import ApiPolicy
from mappa_core.calls.client import ProviderClient
from mappa_core.calls.options import ApiPolicyOptions, CallLimits, Price
from mappa_core.engine import Sampler
from mappa_core.transport import CallError


def says(role: str, content: str, **more) -> Message:
    return Message(role=role, content=content, **more)


def policy_over(transport, **options) -> ApiPolicy:
    chosen = ApiPolicyOptions(**options)
    return ApiPolicy(ProviderClient(lambda: transport, name="gemini", limits=chosen.limits, random=Random(0)), chosen)


@pytest.fixture
def policy(scripted, answer):
    return policy_over(scripted(answer()))


def shown(policy, *messages: Message) -> list[tuple[str, str]]:
    prompt = policy.render(messages)
    assert all(message == Message(role=message.role, content=message.content) for message in prompt)
    return [(message.role, message.content) for message in prompt]


# What the model is shown.


def test_alternating_turns_are_sent_unchanged(policy):
    messages = (says("system", "s"), says("user", "a"), says("assistant", "b"), says("user", "  c\n"))
    assert policy.render(messages) == messages


def test_consecutive_messages_of_one_role_are_joined(policy):
    assert shown(policy, says("system", "s"), says("system", "t"), says("user", "a"), says("user", "b")) == [
        ("system", "s\n\nt"),
        ("user", "a\n\nb"),
    ]


def test_later_system_message_becomes_part_of_the_user_message(policy):
    said = (says("system", "s"), says("user", "a"), says("system", "now shorter"), says("assistant", "b"))
    assert shown(policy, *said) == [("system", "s"), ("user", "a\n\nnow shorter"), ("assistant", "b")]
    assert shown(policy, says("user", "a"), says("system", "b")) == [("user", "a\n\nb")]


def test_results_of_tools_become_text_of_the_user(policy):
    said = (
        says("user", "a"),
        says("assistant", "b"),
        says("tool", "4", name="python", tool_call_id="1"),
        says("tool", "5"),
        says("user", "go on"),
    )
    assert shown(policy, *said)[2:] == [
        ("user", "Result of the tool python:\n\n4\n\nResult of a tool:\n\n5\n\ngo on"),
    ]


def test_calls_become_text_and_think_text_stays_out(policy):
    call = ToolCall(name="calculator", arguments={"expression": "1 + 1"}, id="7")
    said = (says("user", "a"), says("assistant", "", tool_calls=(call,), reasoning="hmm"), says("tool", "2"))
    assert shown(policy, *said)[1] == ("assistant", 'Call of the tool calculator:\n\n{"expression": "1 + 1"}')


def test_empty_messages_are_left_out(policy):
    said = (says("system", " "), says("user", "a"), says("assistant", ""), says("user", "b"), says("assistant", "\n"))
    assert shown(policy, *said) == [("user", "a\n\nb")]


def test_only_fenced_python_can_be_offered(policy):
    python, calculator = (ToolSpec(name=name, description="", schema={}) for name in ("python", "calculator"))
    assert policy.render((says("user", "a"),), (python,)) == (says("user", "a"),)
    with pytest.raises(ConfigError, match=r"calls only python, by a fenced block, and the workflow offers it calcul"):
        policy.render((says("user", "a"),), (python, calculator))


# What is asked, and what comes back.

PROMPT = (says("system", "s"), says("user", "a"))


def test_an_action_is_text_without_tokens(travel, scripted, answer):
    transport = scripted(answer("four"))
    policy = policy_over(transport)
    completion = travel(policy.sample(PROMPT, Sampling(max_tokens=77, temperature=0.3, seed=2**62 + 5)))
    (request,) = transport.requests
    assert (request.messages, request.max_tokens, request.answer) == (PROMPT, 77, "text")
    assert (request.temperature, request.seed, request.timeout_s) == (None, 5, 60.0)
    assert (completion.text, completion.finish, completion.temperature) == ("four", "stop", 1.0)
    assert completion.tokens is completion.logprobs is completion.prompt_tokens is None
    assert (completion.usage.calls, completion.usage.prompt_tokens, completion.usage.usd) == (1, 100, None)


def test_temperature_is_sent_if_the_option_is_set(travel, scripted, answer):
    transport = scripted(answer())
    completion = travel(policy_over(transport, send_temperature=True).sample(PROMPT, Sampling(temperature=0.0)))
    assert transport.requests[0].temperature == completion.temperature == 0.0


@pytest.mark.parametrize(
    ("stop", "finish", "text"), [("end", "stop", "yes"), ("length", "length", "yes"), ("blocked", "abort", "")]
)
def test_how_an_action_ended(travel, scripted, answer, stop, finish, text):
    completion = travel(policy_over(scripted(answer(stop=stop))).sample(PROMPT, Sampling()))
    assert (completion.finish, completion.text) == (finish, text)


@pytest.mark.parametrize(
    ("wanted", "text", "stop_text"),
    [
        (("Observation:", "\n\n"), "Act: look\n", "Observation:"),
        (("look", "ok"), "Act: ", "look"),
        (("never",), "Act: look\nObservation: made up", None),
    ],
)
def test_a_reply_is_cut_at_the_first_stop_text(travel, scripted, answer, wanted, text, stop_text):
    policy = policy_over(scripted(answer("Act: look\nObservation: made up", stop="length")))
    completion = travel(policy.sample(policy.render([says("user", "a")]), Sampling(stop=wanted)))
    assert (completion.text, completion.stop_text) == (text, stop_text)
    assert completion.finish == ("length" if stop_text is None else "stop")


def test_a_call_without_reply_ends_the_trajectory(travel, scripted):
    with pytest.raises(CallError, match="key: 401"):
        travel(policy_over(scripted(CallError("key", "401"))).sample(PROMPT, Sampling()))
    with pytest.raises(PromptTooLong, match="too_long: 200000 tokens"):
        travel(policy_over(scripted(CallError("too_long", "200000 tokens"))).sample(PROMPT, Sampling()))


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 40}])
def test_a_distribution_that_is_cut_is_refused(travel, policy, cut):
    with pytest.raises(ConfigError, match=r"sampling\.top_p=1 and sampling\.top_k=0"):
        travel(policy.sample(PROMPT, Sampling(**cut)))


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("  plain\n", "  plain\n", None),
        ("<think>\nwhy\n</think>\n\nbecause", "because", "why"),
        ("it was in the prompt\n</think>\nbecause", "because", "it was in the prompt"),
        ("<think>never ends", "", "never ends"),
    ],
)
def test_think_text_becomes_the_reasoning_of_the_reply(policy, text, content, reasoning):
    completion = Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    assert policy.reply(completion) == says("assistant", content, reasoning=reasoning)


# What core makes of a transport.


@dataclass
class WireOptions:
    model: str = "???"
    region: str = "eu"


@dataclass(frozen=True)
class FrozenOptions:
    model: str = "m"


@dataclass
class ClashingOptions:
    limits: int = 3


def policy_offer(transport):
    """The policy that core offers for a plugin's transport."""

    class Plugin:
        @hookimpl
        def mappa_transports(self):
            yield transport

    return load_plugins(only=(), modules={"wires": Plugin()}).offer("policies", transport.name)


def test_a_policy_is_made_of_every_transport(travel, scripted, answer):
    built = []

    def build(options):
        built.append(options)
        return scripted(answer())

    offer = policy_offer(Offer("gemini", build, WireOptions))
    assert offer.name == "gemini"
    assert is_dataclass(offer.options)
    chosen = OmegaConf.to_object(
        OmegaConf.merge(
            OmegaConf.structured(offer.options),
            {"model": "m", "limits": {"concurrency": 3}, "price": {"input": 1.0, "output": 2.0}},
        )
    )
    assert (chosen.model, chosen.region, chosen.limits, chosen.price) == (
        "m",
        "eu",
        CallLimits(concurrency=3),
        Price(input=1.0, output=2.0),
    )
    policy: Sampler = offer.build(chosen)
    assert built == [chosen]
    assert (policy.provider.name, policy.provider.model, policy.provider.priced) == ("gemini", "m", True)
    travel(policy.close())


def test_policy_of_a_transport_without_options_has_the_options_of_core():
    assert fields(policy_offer(Offer("plain", lambda options: None)).options) == fields(ApiPolicyOptions)


@pytest.mark.parametrize(
    ("options", "message"),
    [(ClashingOptions, "ClashingOptions has the option 'limits'"), (FrozenOptions, "are a plain dataclass")],
)
def test_transport_options_that_clash_or_are_frozen_are_refused(options, message):
    with pytest.raises(PluginError, match=message):
        policy_offer(Offer("odd", lambda chosen: None, options))
