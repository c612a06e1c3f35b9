"""Langfuse, by its client `langfuse`: observations come by the public API, verdicts go as scores."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from mappa.look.importing.openinference import GRAPH_NODE
from mappa.look.tracers.address import KEYS, TraceChoice
from mappa.look.tracers.judgements import Judgement
from mappa.look.tracers.tracer import (
    MAX_SPANS,
    MAX_TRACES,
    PulledTrace,
    TraceEntry,
    Tracer,
    check_span_count,
    import_client,
    open_http,
    server_errors,
)
from mappa_core import InputError
from mappa_core.redaction import clean_line

_AGENT = "gen_ai.agent.name"
CLOUD = "https://cloud.langfuse.com"
_PAGE = 100
_BATCH = 100
"""Scores in a request."""
_FIELDS = "core,basic,time,io,metadata,model,usage,trace_context"
_LIST_FIELDS = "core,basic,time,trace_context"
_NODE_KEYS = "langgraph_node,langgraph_checkpoint_ns,gen_ai.agent.name"
"""Keys of metadata that say who acted: the server cuts other values to 200 characters."""


class LangfuseTracer(Tracer):
    """The project of a Langfuse server that the keys of the environment belong to. `server` None: the one that
    LANGFUSE_BASE_URL or LANGFUSE_HOST names, else Langfuse's own."""

    def __init__(self, server: str | None) -> None:
        api = import_client("langfuse.api", "langfuse")
        place = server or os.environ.get("LANGFUSE_BASE_URL") or os.environ.get("LANGFUSE_HOST") or CLOUD
        public, secret = (os.environ.get(name) for name in KEYS["langfuse"])
        if not public or not secret:
            raise InputError(f"langfuse://: set {' and '.join(KEYS['langfuse'])}: they are of a project's settings")
        self.name = f"Langfuse at {place}"
        self._api = api
        self._client = api.LangfuseAPI(
            base_url=place,
            x_langfuse_sdk_name="mappa",
            x_langfuse_public_key=public,
            username=public,
            password=secret,
            httpx_client=open_http(place),
        )

    def list_traces(self, choice: TraceChoice) -> Iterator[TraceEntry]:
        seen: set[str] = set()
        for root in self._page(limit=MAX_TRACES, fields=_LIST_FIELDS, filter=json.dumps(_conditions(choice))):
            if root.trace_id is not None and root.trace_id not in seen:
                seen.add(root.trace_id)
                yield TraceEntry(id=root.trace_id, stamp=f"{root.updated_at or root.end_time}")

    def read_trace(self, trace: str) -> PulledTrace:
        found = list(self._page(limit=MAX_SPANS + 1, fields=_FIELDS, trace_id=trace, expand_metadata=_NODE_KEYS))
        check_span_count(found, trace)
        ended = [one.end_time or one.start_time for one in found]
        return PulledTrace(
            spans=[{"id": trace, "observations": [_name_node(json.loads(one.json())) for one in found]}],
            has_root=any(_is_root(one) and one.end_time is not None for one in found),
            last=max((time.timestamp() for time in ended), default=0.0),
            tags=frozenset(tag for one in found for tag in one.tags or ()),
        )

    def _page(self, *, limit: int, **asked: Any) -> Iterator[Any]:
        """Observations of all pages, at most `limit`."""
        count, cursor = 0, None
        while count < limit:
            with server_errors(self.name, "langfuse"):
                page = self._client.observations.get_many(limit=_PAGE, cursor=cursor, **asked)
            yield from page.data
            count, cursor = count + len(page.data), page.meta.cursor
            if not cursor or not page.data:
                return

    def write(self, judgements: Sequence[Judgement]) -> None:
        scores = [score for one in judgements for score in self._to_scores(one)]
        for start in range(0, len(scores), _BATCH):
            with server_errors(self.name, "langfuse"):
                answer = self._client.scores.create(request=scores[start : start + _BATCH])
            if refused := list(getattr(answer, "errors", None) or ()):
                first = clean_line(str(refused[0]))
                raise InputError(f"{self.name}: {len(refused):,} scores were refused, the first: {first}")

    def _to_scores(self, judgement: Judgement) -> Iterator[Any]:
        """The points as a numeric score, and who is blamed as a categorical one: a score holds one value."""
        judge = judgement.judge.name
        for name, value, kind in (
            (judge, judgement.score, "NUMERIC"),
            (f"{judge} blames", judgement.label, "CATEGORICAL"),
        ):
            if value is not None:
                yield self._api.CreateScoreRequest(
                    id=_score_id(judgement, name),
                    trace_id=judgement.trace,
                    observation_id=judgement.span,
                    name=name,
                    value=value,
                    data_type=kind,
                    comment=judgement.explanation or None,
                    metadata=judgement.metadata,
                    # The server replaces a score of the same id only where the time is the same, too.
                    timestamp=datetime.fromtimestamp(judgement.time, UTC),
                )


def _name_node(observation: dict[str, Any]) -> dict[str, Any]:
    """The observation with the node of a LangGraph as its agent, as the callback of LangChain writes it."""
    metadata = observation.get("metadata")
    if not isinstance(metadata, dict) or _AGENT in metadata:
        return observation
    place = GRAPH_NODE.match(str(metadata.get("langgraph_checkpoint_ns", "")))
    node = place[1] if place else metadata.get("langgraph_node")
    return {**observation, "metadata": {**metadata, _AGENT: node}} if isinstance(node, str) else observation


def _conditions(choice: TraceChoice) -> list[dict[str, Any]]:
    """The filter of roots of traces. One that is given replaces the other parameters of a request."""
    found: list[dict[str, Any]] = [{"type": "boolean", "column": "isRootObservation", "operator": "=", "value": True}]
    for time, operator in ((choice.since, ">="), (choice.until, "<")):
        if time is not None:
            found.append({"type": "datetime", "column": "startTime", "operator": operator, "value": time.isoformat()})
    if choice.tags:
        found.append({"type": "arrayOptions", "column": "tags", "operator": "all of", "value": list(choice.tags)})
    return found


def _is_root(observation: Any) -> bool:
    return observation.is_root_observation is True or not observation.parent_observation_id


def _score_id(judgement: Judgement, name: str) -> str:
    parts = (judgement.trace, judgement.span or "", name, str(judgement.details.get("run")), f"{judgement.time:.3f}")
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
