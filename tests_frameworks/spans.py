"""What tests of spans share: a provider, a team that talks to it, and the action that its spans become."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread

import openai
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mappa.look.importing import LogMapping, import_logs
from mappa.runs import RunReader
from mappa_core.plugins import load_plugins

NAMES = ("researcher", "writer")
QUESTION = "How heavy is the sun?"


class Provider(BaseHTTPRequestHandler):
    """Speaks chat completions; the reply names the model that was asked."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": f"{asked['model']} says 2e30 kg"}
        usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps(
            {"id": "c", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": [choice],
             "usage": usage}
        ).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def serving() -> Iterator[str]:
    """A provider on this machine; where it is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


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
    with serving() as url, instrumented(instrumentor, provider):
        play(url, provider)
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
