"""Spans of the instrumentations that people have, written by the libraries themselves: who acted, and what was said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Annotated, TypedDict

import openai
import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mappa_analysis.importing import LogMapping, import_logs
from mappa_core.plugins import load_plugins
from mappa_core.runs import RunReader

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


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def play_graph(url: str, provider: TracerProvider) -> None:
    graph = StateGraph(State)
    for name in NAMES:
        model = ChatOpenAI(model=f"model-of-{name}", base_url=url, api_key="none")
        graph.add_node(name, lambda state, model=model: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "researcher").add_edge("researcher", "writer").add_edge("writer", END)
    graph.compile().invoke({"messages": [HumanMessage(QUESTION)]})


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


CASES = {
    "OpenInference, LangGraph": ("openinference.instrumentation.langchain.LangChainInstrumentor", play_graph, None),
    "OpenInference, client": ("openinference.instrumentation.openai.OpenAIInstrumentor", play_client, "my.agent"),
    "Traceloop, LangGraph": ("opentelemetry.instrumentation.langchain.LangchainInstrumentor", play_graph, None),
    "Traceloop, client": ("opentelemetry.instrumentation.openai.OpenAIInstrumentor", play_client, "my.agent"),
}


@pytest.mark.parametrize("case", CASES)
def test_spans_become_actions_of_the_agents_that_acted(case, url, tmp_path: Path) -> None:
    name, play, agent_from = CASES[case]
    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with instrumented(name, provider):
        play(url, provider)
    log = tmp_path / "spans.jsonl"
    log.write_text("".join(span.to_json(indent=None) + "\n" for span in kept.get_finished_spans()))
    made = import_logs(
        load_plugins(only=("analysis",)), [log], LogMapping(agent_from=agent_from), root=tmp_path, name="run"
    )
    with RunReader(made.folder) as reader:
        (one,) = [reader.trajectory(row.id) for row in reader.trajectories]
    assert [step.agent for step in one.steps] == [*NAMES], log.read_text()
    assert [step.reply.content for step in one.steps] == [f"model-of-{name} says 2e30 kg" for name in NAMES]
    assert one.task.prompt == QUESTION
    assert [len(step.messages) for step in one.steps] == [1, 2]
    assert one.steps[0].completion.usage.completion_tokens == 7
