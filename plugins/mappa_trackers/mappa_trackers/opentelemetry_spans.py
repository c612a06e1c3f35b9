"""OpenTelemetry tracker: a trace per rollout, with a span per action, tool call and verdict.

    invoke_workflow                     a rollout
      invoke_agent AGENT                an action
        execute_tool TOOL               a tool call of the action
        evaluate COACH                  a verdict on the action

Names and attributes are those of the GenAI semantic conventions (github.com/open-telemetry/semantic-conventions-genai);
attributes that they lack begin with `mappa.`. Ids of traces and spans are hashes of the run's id and of the ids of
trajectories, steps and verdicts. So spans need not wait for their parents, and a rollout that is reported again after a
resume is the same trace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mappa_core import ConfigError, Step, ToolResult, TrackedRun, Tracker, Trajectory, Verdict
from mappa_trackers.messages import to_genai_message
from mappa_trackers.optional_import import import_library

if TYPE_CHECKING:
    from mappa_core import Ending
    from mappa_trackers.options import OtelOptions

FLUSH_MS = 30_000
"""Timeout in milliseconds for sending the last spans."""
NANOSECONDS = 1_000_000_000
Attributes = dict[str, Any]


class OtelTracker(Tracker):
    """Exports spans to a collector over OTLP/HTTP, or to a file."""

    def __init__(self, options: OtelOptions) -> None:
        if options.endpoint is not None and options.file is not None:
            raise ConfigError("trackers: otel: endpoint and file are both set: leave out where no spans should go")
        self._options = options
        self._trace = import_library("opentelemetry.trace", "otel")
        self._sdk = import_library("opentelemetry.sdk.trace", "otel")
        self._exporting = import_library("mappa_trackers.span_exporters", "otel")
        self._run: TrackedRun | None = None
        self._workflow = ""
        self._ids: Any = None
        self._provider: Any = None
        self._exporter: Any = None

    def start(self, run: TrackedRun) -> None:
        self._run, self._workflow = run, f"{run.plugin}/{run.recipe}"
        self._exporter = self._exporting.open_exporter(self._options, run.folder)
        self._ids = self._exporting.PresetIdGenerator()
        self._provider = self._exporting.build_provider(
            self._exporter, self._ids, service=self._options.service, run=run
        )
        self._tracer = self._provider.get_tracer("mappa")

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Do nothing: metrics are for other trackers."""

    def action(self, trajectory: str, step: Step, ended: float) -> None:
        tools = sum(result.seconds for result in step.results)
        began = ended - step.completion.seconds - tools
        self._span(
            f"invoke_agent {step.agent}",
            trajectory,
            step.id,
            parent_id=trajectory,
            between=(began, ended),
            attributes={**self._action_attributes(step), "gen_ai.conversation.id": trajectory},
        )
        began = ended - tools
        for number, result in enumerate(step.results):
            self._span(
                f"execute_tool {result.tool}",
                trajectory,
                f"{step.id}/tool/{number}",
                parent_id=step.id,
                between=(began, began + result.seconds),
                attributes=self._call_attributes(step, number, result),
                error=None if result.status == "ok" else result.status,
            )
            began += result.seconds

    def verdict(self, trajectory: str, verdict: Verdict, ended: float) -> None:
        self._span(
            f"evaluate {verdict.coach}",
            trajectory,
            verdict.id,
            parent_id=verdict.step,
            between=(ended - verdict.seconds, ended),
            attributes=self._verdict_attributes(verdict),
            error=verdict.error if verdict.status == "failed" else None,
        )

    def rollout(self, split: str, trajectory: Trajectory, ended: float) -> None:
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": self._workflow,
            "gen_ai.conversation.id": trajectory.id,
            "mappa.split": split,
            "mappa.iteration": trajectory.iteration,
            "mappa.sample": trajectory.sample,
            "mappa.task": trajectory.task.id,
            "mappa.stratum": trajectory.task.stratum,
            **{f"mappa.outcome.{name}": value for name, value in trajectory.outcome.items()},
        }
        if self._options.content:
            attributes["mappa.task.prompt"] = trajectory.task.prompt
        self._span(
            f"invoke_workflow {self._workflow}",
            trajectory.id,
            trajectory.id,
            parent_id=None,
            between=(ended - trajectory.seconds, ended),
            attributes=attributes,
            error=None if trajectory.error is None else trajectory.error.kind,
        )

    def close(self, ending: Ending) -> None:
        if self._provider is None:
            return
        in_time = self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()
        if not in_time or self._exporter.lost:
            raise RuntimeError(
                f"{self._exporter.lost} spans were refused"
                + ("" if in_time else f", and some were not sent within {FLUSH_MS / 1000:g} s")
            )

    def _action_attributes(self, step: Step) -> Attributes:
        completion = step.completion
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": step.agent,
            "gen_ai.request.model": step.policy,
            "gen_ai.request.temperature": completion.temperature,
            "gen_ai.response.finish_reasons": [completion.finish],
            "mappa.turn": step.turn,
            "mappa.position": step.position,
            "mappa.breaches": [f"{breach.kind}: {breach.path}" for breach in step.breaches],
            "gen_ai.usage.input_tokens": None if completion.prompt_tokens is None else len(completion.prompt_tokens),
            "gen_ai.usage.output_tokens": None if completion.tokens is None else len(completion.tokens),
        }
        if completion.usage is not None:
            attributes["gen_ai.usage.input_tokens"] = completion.usage.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = completion.usage.completion_tokens
        if self._options.content:
            attributes["gen_ai.input.messages"] = json.dumps([to_genai_message(message) for message in step.messages])
            attributes["gen_ai.output.messages"] = json.dumps(
                [{**to_genai_message(step.reply), "finish_reason": completion.finish}]
            )
        return attributes

    def _call_attributes(self, step: Step, number: int, result: ToolResult) -> Attributes:
        call = step.calls[number]
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": result.tool,
            "gen_ai.tool.call.id": call.id,
            "mappa.tool.status": result.status,
            "mappa.tool.exit_code": result.exit_code,
            "mappa.tool.attempts": result.attempts,
        }
        if self._options.content:
            attributes["gen_ai.tool.call.arguments"] = json.dumps(dict(call.arguments), default=str)
            attributes["gen_ai.tool.call.result"] = result.stdout + result.stderr
        return attributes

    def _verdict_attributes(self, verdict: Verdict) -> Attributes:
        usage = verdict.usage
        attributes: Attributes = {
            "gen_ai.operation.name": "evaluate",
            "gen_ai.evaluation.name": verdict.coach,
            "gen_ai.evaluation.score.value": verdict.score,
            "gen_ai.evaluation.score.label": verdict.status,
            "gen_ai.response.model": verdict.model,
            "gen_ai.usage.input_tokens": None if usage is None else usage.prompt_tokens,
            "gen_ai.usage.output_tokens": None if usage is None else usage.completion_tokens,
            "mappa.verdict.phase": verdict.phase,
            "mappa.verdict.blame": verdict.blame,
            "mappa.verdict.raw_score": verdict.raw_score,
            "mappa.verdict.question": verdict.question,
            "mappa.verdict.replayed": verdict.replayed,
            "mappa.verdict.usd": None if usage is None else usage.usd,
        }
        if self._options.content:
            attributes["gen_ai.evaluation.explanation"] = verdict.reasoning
        return attributes

    def _span(
        self,
        name: str,
        trajectory: str,
        identity: str,
        *,
        parent_id: str | None,
        between: tuple[float, float],
        attributes: Attributes,
        error: str | None = None,
    ) -> None:
        trace_id, span_id = self._hash_id(trajectory, 16), self._hash_id(identity, 8)
        context = None
        if parent_id is not None:
            sampled = self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED)
            parent = self._trace.SpanContext(
                trace_id, self._hash_id(parent_id, 8), is_remote=False, trace_flags=sampled
            )
            context = self._trace.set_span_in_context(self._trace.NonRecordingSpan(parent))
        self._ids.set_next(trace_id, span_id)
        began, ended = (int(NANOSECONDS * seconds) for seconds in between)
        given = {key: _sanitize_value(value) for key, value in attributes.items() if value is not None}
        span = self._tracer.start_span(name, context=context, attributes=given, start_time=began)
        if error is not None:
            span.set_attribute("error.type", _sanitize_value(error))
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, _sanitize_value(error)))
        span.end(ended)

    def _hash_id(self, name: str, size: int) -> int:
        assert self._run is not None  # a tracker is started before its other methods are called
        digest = hashlib.blake2b(f"{self._run.id}/{name}".encode(errors="replace"), digest_size=size).digest()
        return int.from_bytes(digest) or 1


def _sanitize_value(value: Any) -> Any:
    """Return an attribute value whose text has no unpaired surrogates, which collectors reject."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return [_sanitize_value(item) for item in value] if isinstance(value, list) else value
