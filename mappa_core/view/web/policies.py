"""Health of the policies: figures of every update, a chart a figure and a line a policy, and the warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from mappa_core.store.reader import Reader
from mappa_core.view.chart import Chart, fitted
from mappa_core.view.curves import Iterations, between, curve, last
from mappa_core.view.health import warnings_of

FIGURES: Mapping[str, str] = {
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
"""Figures of an update under the name that the engine gives them, in the order of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What the last iteration showed of a policy."""

    policy: str
    figures: Mapping[str, float]


def page(reader: Reader, folder: Path, request: Request) -> dict[str, Any]:
    iterations = reader.iterations()
    policies = sorted({name.rpartition("/")[0] for name in between(iterations, "policy/", "")})
    latest = iterations[-1][1] if iterations else {}
    return {
        "titles": FIGURES,
        "warnings": warnings_of(reader),
        "iterations": len(iterations),
        "figures": [
            Now(
                policy=policy,
                figures={name: latest[key] for name in FIGURES if (key := f"policy/{policy}/{name}") in latest},
            )
            for policy in policies
        ],
        "charts": charts(iterations, policies),
    }


def charts(iterations: Iterations, policies: list[str]) -> list[Chart]:
    """The figures that were recorded, and the lengths of each agent's actions after the divergence."""
    end = last(iterations)
    drawn: dict[str, Chart] = {}
    for name, title in FIGURES.items():
        lines = {policy: curve(iterations, f"policy/{policy}/{name}") for policy in policies}
        if any(lines.values()):
            drawn[name] = fitted(title, lines, x_high=end)
    agents = between(iterations, "agent/", "/length")
    lengths = {agent: curve(iterations, f"agent/{agent}/length") for agent in agents}
    if agents:
        drawn["length"] = fitted("Length of an action, sampled tokens", lengths, x_high=end)
    order = ("entropy", "kl", "length", *FIGURES)
    return [drawn[name] for name in dict.fromkeys(order) if name in drawn]
