"""The page on the policies: a chart per figure of the updates with a line per policy, warnings, and the prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from mappa.look.coach_eval.shown_scenes import is_imported
from mappa.look.view.chart import Chart, build_fitted_chart
from mappa.look.view.metric_points import (
    Iterations,
    agent_figure,
    collect_names,
    last_iteration,
    measured_agents,
    points_by_name,
)
from mappa.look.view.prompt_histories import build_prompt_histories
from mappa.runs import RunReader
from mappa.store.iteration_report import IterationReport

POLICY_FIGURES: Mapping[str, str] = {
    "entropy": "Entropy, nats a token",
    "kl": "Divergence from the reference, nats a token",
    "grad_norm": "Norm of the gradient",
    "mismatch_max": "Largest mismatch of sampler and learner, nats",
    "mismatch_kl": "Divergence of the learner from the sampler, nats a token",
    "ess": "Effective sample size, share of the sample",
    "clip_share": "Tokens that the loss clips, share",
    "reward_std": "Standard deviation of rewards",
    "equal_groups": "Groups whose rewards are all equal, share",
    "loss": "Loss",
    "lr": "Learning rate",
}
"""Titles of the figures of an update by their names in the engine, in the order of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestFigures:
    """The figures of a policy in the last iteration."""

    policy: str
    figures: Mapping[str, float]


def build_policies_page(reader: RunReader, folder: Path, request: Request) -> dict[str, Any]:
    iterations = list(reader.iterations)
    policies = collect_names(iterations, lambda report: report.policies)
    latest = iterations[-1].policies if iterations else {}
    return {
        "titles": POLICY_FIGURES,
        "imported": is_imported(reader),
        "warnings": reader.warnings,
        "iterations": len(iterations),
        "figures": [
            LatestFigures(
                policy=policy,
                figures={name: latest[policy][name] for name in POLICY_FIGURES if name in latest.get(policy, {})},
            )
            for policy in policies
        ],
        "charts": build_policy_charts(iterations, policies),
        "prompts": build_prompt_histories(reader),
    }


def build_policy_charts(iterations: Iterations, policies: list[str]) -> list[Chart]:
    """Build charts of the recorded figures; the lengths of each agent's actions come after the divergence."""
    end = last_iteration(iterations)
    drawn: dict[str, Chart] = {}
    for name, title in POLICY_FIGURES.items():
        lines = points_by_name(iterations, policies, _policy_figure(name))
        if any(lines.values()):
            drawn[name] = build_fitted_chart(title, lines, x_high=end)
    agents = measured_agents(iterations, "length")
    lengths = points_by_name(iterations, agents, lambda report, agent: agent_figure(report, agent, "length"))
    if agents:
        drawn["length"] = build_fitted_chart("Length of an action, sampled tokens", lengths, x_high=end)
    order = ("entropy", "kl", "length", *POLICY_FIGURES)
    return [drawn[name] for name in dict.fromkeys(order) if name in drawn]


def _policy_figure(name: str) -> Callable[[IterationReport, str], float | None]:
    return lambda report, policy: report.policies.get(policy, {}).get(name)
