"""What tests of spans share: what a provider replies, a team that talks to it, and the action that its spans become."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import openai
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from provider import chat_completion, serving

from mappa.look.importing import LogMapping, import_logs
from mappa.runs import RunReader
from mappa_core.plugins import load_plugins

NAMES = ("researcher", "writer")
QUESTION = "How heavy is the sun?"


def answer(asked: Any) -> dict[str, Any]:
    """Names the model that was asked."""
    return chat_completion(asked, {"role": "assistant", "content": f"{asked['model']} says 2e30 kg"})


def play_client(url: str, provider: TracerProvider) -> None:
    """A team of one's own, which says in a span around each call who acts."""
    client, tracer = openai.OpenAI(base_url=url, api_key="none"), provider.get_tracer("team")
    messages = [{"role": "user", "content": QUESTION}]
    with tracer.start_as_current_span("team"):
        for name in NAMES:
            with tracer.start_as_current_span("turn", attributes={"my.agent": name}):
                reply = client.chat.completions.create(model=f"model-of-{name}", messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})


@contextmanager
def instrumented(name: str, provider: TracerProvider) -> Iterator[None]:
    module, _, kind = name.rpartition(".")
    instrumentor = getattr(import_module(module), kind)()
    instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)
    yield
    instrumentor.uninstrument()


def hold_spans(
    instrumentor: str, play: Callable[[str, TracerProvider], None], agent_from: str | None, folder: Path
) -> None:
    """Play the team under an instrumentation, import the spans, and hold the actions to those that were taken."""
    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with serving(answer) as place, instrumented(instrumentor, provider):
        play(f"{place}/v1", provider)
    log = folder / "spans.jsonl"
    log.write_text("".join(span.to_json(indent=None) + "\n" for span in kept.get_finished_spans()))
    made = import_logs(load_plugins(only=("look",)), [log], LogMapping(agent_from=agent_from), root=folder, name="run")
    with RunReader(made.folder) as reader:
        (one,) = [reader.trajectory(row.id) for row in reader.trajectories]
    assert [step.agent for step in one.steps] == [*NAMES], log.read_text()
    assert [step.reply.content for step in one.steps] == [f"model-of-{name} says 2e30 kg" for name in NAMES]
    assert one.task.prompt == QUESTION
    assert [len(step.messages) for step in one.steps] == [1, 2]
    assert one.steps[0].completion.usage.completion_tokens == 7
