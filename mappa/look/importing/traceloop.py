"""Reads who acted from spans of Traceloop's instrumentation of LangGraph (OpenLLMetry). The agent that they name is the
whole graph; the node stands in an attribute of its own."""

from __future__ import annotations

from dataclasses import replace

from mappa.look.importing.openinference import GRAPH_NODE
from mappa.look.importing.spans import Span

_NODES = "traceloop.association.properties.langgraph_checkpoint_ns"


def name_node(span: Span) -> Span:
    """The span with the node of the graph as its agent, unless it names one; unchanged if it is in no node."""
    node = GRAPH_NODE.match(str(span.attributes.get(_NODES, "")))
    if node is None or "gen_ai.agent.name" in span.attributes:
        return span
    return replace(span, attributes={**span.attributes, "gen_ai.agent.name": node[1]})
