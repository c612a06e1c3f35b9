"""Spans of the instrumentations that people have, written by the libraries themselves: who acted, and what was said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from opentelemetry.sdk.trace import TracerProvider
from spans import NAMES, QUESTION, hold_spans, play_client


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def play_graph(url: str, provider: TracerProvider) -> None:
    graph = StateGraph(State)
    for name in NAMES:
        model = ChatOpenAI(model=f"model-of-{name}", base_url=url, api_key="none")
        graph.add_node(name, lambda state, model=model: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "researcher").add_edge("researcher", "writer").add_edge("writer", END)
    graph.compile().invoke({"messages": [HumanMessage(QUESTION)]})


CASES = {
    "OpenInference, LangGraph": ("openinference.instrumentation.langchain.LangChainInstrumentor", play_graph, None),
    "OpenInference, client": ("openinference.instrumentation.openai.OpenAIInstrumentor", play_client, "my.agent"),
    "Traceloop, LangGraph": ("opentelemetry.instrumentation.langchain.LangchainInstrumentor", play_graph, None),
    "Traceloop, client": ("opentelemetry.instrumentation.openai.OpenAIInstrumentor", play_client, "my.agent"),
}


@pytest.mark.parametrize("case", CASES)
def test_spans_become_actions_of_the_agents_that_acted(case, tmp_path: Path) -> None:
    instrumentor, play, agent_from = CASES[case]
    hold_spans(instrumentor, play, agent_from, tmp_path)
