"""LangGraph: a graph of two nodes, called from threads, and as a coroutine whose client outlives a rollout; and the
graph of the page on it, done as it stands."""

from __future__ import annotations

from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pages import check_page, try_and_train

NAMES = ("planner", "reviser")
clients: dict[tuple[str, str], ChatOpenAI] = {}
"""By agent and key: the library keeps one HTTP client for all of them."""


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def model_of(session, name: str) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=session.base_url, api_key=session.api_key)


def start_of(session) -> State:
    return {"messages": [HumanMessage(f"Plan: {session.task.prompt}")]}


def solve(session) -> str:
    graph = StateGraph(State)
    for name in NAMES:
        model = model_of(session, name)
        graph.add_node(name, lambda state, model=model: {"messages": [model.invoke(state["messages"][:1])]})
    graph.add_edge(START, "planner").add_edge("planner", "reviser").add_edge("reviser", END)
    return graph.compile().invoke(start_of(session))["messages"][-1].text


async def solve_async(session) -> str:
    graph = StateGraph(State)
    for name in NAMES:
        graph.add_node(name, node_of(model_of(session, name)))
    graph.add_edge(START, "planner").add_edge("planner", "reviser").add_edge("reviser", END)
    return (await graph.compile().ainvoke(start_of(session)))["messages"][-1].text


def node_of(model: ChatOpenAI):
    async def node(state: State):
        return {"messages": [await model.ainvoke(state["messages"][:1])]}

    return node


@pytest.mark.parametrize("function", [solve, solve_async])
def test_a_graph_of_two_agents_is_trained(train, hold, function, capfd):
    hold(train(function))
    assert "Event loop is closed" not in capfd.readouterr().err


def test_the_graph_of_the_page_is_trained_with_two_policies(tmp_path, monkeypatch, capsys):
    files = ("my_graph.py", "play.py", "own.yaml")
    commands = try_and_train("how-to/langgraph.md", "test_langgraph.py", files, tmp_path, monkeypatch)
    check_page(commands, tmp_path, capsys)
