"""Rows of a run's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mappa.session.eval_split import EvalPart
from mappa_core.records import Failure, Interval, Step, Verdict

TrajectoryStatus = Literal["open", "done", "failed"]
"""Status of a trajectory: not ended (yet, or because the run was killed), ended, or ended with a Failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """A trajectory without its steps. `outcome` is empty and `seconds` None until it ends."""

    id: str
    split: str
    iteration: int
    sample: int
    task: str
    stratum: str
    status: TrajectoryStatus
    steps: int
    outcome: Mapping[str, float]
    error: Failure | None
    seconds: float | None

    def columns(self) -> dict[str, Any]:
        error = None if self.error is None else f"{self.error.kind}: {self.error.message}"
        return _flat({field.name: getattr(self, field.name) for field in fields(self)} | {"error": error})


@dataclass(frozen=True, slots=True, kw_only=True)
class _ActionRow:
    """What the rows of actions and of verdicts share: the trajectory. `outcome` is empty until it ends, and
    if it ends with an error."""

    split: str
    iteration: int
    trajectory: str
    task: str
    stratum: str
    outcome: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow(_ActionRow):
    """An action, and its last verdict with a score; without one, its last verdict."""

    step: Step
    verdict: Verdict | None

    def columns(self) -> dict[str, Any]:
        step, verdict, completion = self.step, self.verdict, self.step.completion
        usage = completion.usage
        place = {field.name: getattr(self, field.name) for field in fields(_ActionRow) if field.name != "outcome"}
        return _flat(
            {
                **place, "step": step.id, "position": step.position, "turn": step.turn, "agent": step.agent,
                "policy": step.policy, "score": verdict and verdict.score, "blame": verdict and verdict.blame,
                "verdict": verdict and verdict.status,
                "prompt_tokens": _count(completion.prompt_tokens, None if usage is None else usage.prompt_tokens),
                "completion_tokens": _count(completion.tokens, None if usage is None else usage.completion_tokens),
                "finish": completion.finish, "seconds": completion.seconds, "tool_calls": len(step.results),
                "tool_failures": sum(result.status != "ok" for result in step.results),
                "breaches": len(step.breaches), "text": completion.text,
                "outcome": self.outcome, "strata": step.strata,
            }
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow(_ActionRow):
    """A verdict, with the agent and the position of the action that it judges."""

    agent: str
    position: int
    verdict: Verdict

    def columns(self) -> dict[str, Any]:
        given = ("step", "coach", "phase", "status", "score", "raw_score", "blame", "reasoning", "correction", "error",
                 "model", "question", "seconds")  # fmt: skip
        usage = self.verdict.usage
        names = [field.name for field in fields(self) if field.name not in ("outcome", "verdict")]
        return _flat(
            {
                **{name: getattr(self, name) for name in names},
                **{name: getattr(self.verdict, name) for name in given},
                **{name: usage and getattr(usage, name) for name in ("prompt_tokens", "completion_tokens", "usd")},
                "outcome": self.outcome,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """An evaluation after `iteration` iterations, on a `part` of the held-out tasks. `interval` is of the mean of the
    `metric`; it, and that of one of the workflow's further `figures`, is None if every problem was lost."""

    iteration: int
    part: EvalPart
    metric: str
    interval: Interval | None
    figures: Mapping[str, Interval | None] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        bounds = {name: self.interval and getattr(self.interval, name) for name in ("mean", "low", "high")}
        figures = {name: interval and interval.mean for name, interval in self.figures.items()}
        return {"iteration": self.iteration, "part": self.part, "metric": self.metric, **bounds, **figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedWarning:
    """A warning of a policy's health, raised after `iteration`."""

    iteration: int
    rule: str
    policy: str
    text: str


def _flat(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a column of mappings into one column per key, named `<column>_<key>`."""
    flat: dict[str, Any] = {}
    for name, value in columns.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{key}": item for key, item in value.items()}
        else:
            flat[name] = value
    return flat


def _count(tokens: Any, reported: int | None) -> int | None:
    return reported if tokens is None else len(tokens)
