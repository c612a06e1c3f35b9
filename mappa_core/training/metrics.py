"""Names of a run's metrics, as in `iterations` of run.db, in evaluation events and in all trackers.

The set is fixed. A word in capitals is a placeholder for a name of the run (an agent, a stratum, a policy); such a name
may itself contain a `/`. A missing metric has no entry: no number ever stands for an unknown value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

METRICS_PAGE = "docs/metrics.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric: name, unit and description."""

    name: str
    unit: str
    description: str


def _part(*rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(name=name, unit=unit, description=description) for name, unit, description in rows)


SECTIONS: Mapping[str, tuple[Metric, ...]] = {
    "Training rollouts of an iteration": _part(
        ("accuracy", "share", "mean of the workflow's metric over rollouts that their team finished"),
        ("figure/FIGURE", "share", "the same of a further figure of the workflow"),
        ("stratum/STRATUM/accuracy", "share", "`accuracy` within a stratum of tasks"),
        ("stratum/STRATUM/figure/FIGURE", "share", "a further figure within a stratum"),
        ("rollouts", "count", "rollouts that were learned from"),
        ("rollouts/failed", "count", "of them, those that could not be finished"),
        ("rollouts/late", "count", "rollouts of this iteration that a later one learns from"),
        ("rollouts/joined", "count", "rollouts that earlier iterations left to this one"),
        ("tokens", "tokens", "sampled tokens in the experience"),
        (
            "staleness_mean",
            "updates",
            "how much older the weights were that sampled than those that learn, over tokens",
        ),
        ("staleness_max", "updates", "the same, of the oldest token"),
        ("tools/lost", "count", "rollouts that a tool's machinery lost"),
        ("tools/attempts_again", "count", "calls made again after a tool's machinery failed"),
    ),
    "Agents": _part(
        ("agent/AGENT/score", "points", "mean score of its scored actions, live verdicts"),
        ("agent/AGENT/tool_success", "share", "of its calls of tools that succeeded"),
        ("agent/AGENT/turns", "actions", "per rollout in which it acted"),
        ("agent/AGENT/length", "tokens", "sampled per action"),
    ),
    "The coach": _part(
        *(
            (f"coach/{scope}{name}", unit, f"{description}{of}")
            for scope, of in (("", ""), ("agent/AGENT/", ", on an agent's actions"), ("name/COACH/", ", of one coach"))
            for name, unit, description in (
                ("verdicts", "count", "verdicts of all phases"),
                ("abstained", "count", "verdicts in which the coach would not judge"),
                ("failed", "count", "verdicts that could not be given"),
                ("usd", "US dollars", "what the calls cost, left out where a price is unknown"),
                ("replayed", "count", "verdicts from the cassette, which cost nothing"),
                ("calls", "count", "calls of providers"),
                ("prompt_tokens", "tokens", "in prompts, cached ones included"),
                ("completion_tokens", "tokens", "in replies, thinking included"),
                ("cached_tokens", "tokens", "of the prompts, from a provider's cache"),
            )
        ),
    ),
    "Drift of the coach": _part(
        ("drift/alarms", "count", "alarms that were raised"),
        ("drift/PHASE/AGENT/STRATIFIER/STRATUM/gap", "points", "given beyond other strata at equal outcome, so far"),
        ("drift/PHASE/AGENT/STRATIFIER/STRATUM/gap_low", "points", "lower bound of its 95 % interval"),
        ("drift/PHASE/AGENT/STRATIFIER/STRATUM/gap_high", "points", "upper bound"),
        ("drift/PHASE/AGENT/STRATIFIER/STRATUM/growth", "points per iteration", "of the gap"),
        ("drift/PHASE/AGENT/correlation", "-1 to 1", "of score and outcome"),
    ),
    "Policies": _part(
        ("policy/POLICY/rows", "count", "actions that were learned from"),
        ("policy/POLICY/tokens", "tokens", "in them"),
        ("policy/POLICY/steps", "count", "optimiser steps taken"),
        ("policy/POLICY/skipped", "count", "steps that were not finite and moved nothing"),
        ("policy/POLICY/loss", "of the loss", "mean over steps"),
        ("policy/POLICY/grad_norm", "norm", "of the gradient before clipping, mean over steps"),
        ("policy/POLICY/lr", "rate", "learning rate of the last step"),
        ("policy/POLICY/entropy", "nats per token", "mean of -log p of what was sampled"),
        ("policy/POLICY/entropy_full", "nats per token", "over the whole vocabulary, where there is a bonus for it"),
        ("policy/POLICY/kl", "nats per token", "from the reference, by the estimate k3"),
        ("policy/POLICY/ratio_mean", "ratio", "of new to old probability, mean over tokens"),
        ("policy/POLICY/ratio_max", "ratio", "the largest of a token"),
        ("policy/POLICY/clip_share", "share", "of tokens that the loss clips"),
        ("policy/POLICY/clip_share_low", "share", "of those below the lower bound"),
        ("policy/POLICY/clip_share_high", "share", "of those above the upper bound"),
        ("policy/POLICY/mismatch_max", "nats", "largest gap between sampler and learner on a token"),
        ("policy/POLICY/mismatch_mean", "nats per token", "mean of that gap"),
        ("policy/POLICY/mismatch_kl", "nats per token", "divergence of the learner from the sampler"),
        ("policy/POLICY/ess", "share", "effective sample size, before any cap"),
        ("policy/POLICY/correction_share", "share", "of tokens whose weight was capped or masked"),
        ("policy/POLICY/reward_std", "reward", "standard deviation over the rows that count"),
        ("policy/POLICY/equal_groups", "share", "of groups of siblings whose rewards are all equal"),
        ("policy/POLICY/value_loss", "of the loss", "of the value head"),
        ("policy/POLICY/value_explained", "share", "of the variance of value targets that values explain"),
        ("policy/POLICY/supervised_loss", "nats per token", "of corrections that are imitated"),
        ("policy/POLICY/supervised_tokens", "tokens", "in them"),
        ("health/warnings", "count", "limits of `train.health` that a policy newly broke"),
    ),
    "Corrections and counterfactuals": _part(
        ("corrections/FATE", "count", "better actions of the coach by what became of them: `used`, or why not"),
        ("counterfactual/rollouts", "count", "counterfactual rollouts that were played"),
        ("counterfactual/lost", "count", "of them, those that a tool's machinery lost"),
        ("counterfactual/settled", "count", "actions that have a counterfactual credit"),
        ("counterfactual/missing/REASON", "count", "actions that have none, by reason"),
    ),
    "Time": _part(("seconds/PHASE", "seconds", "wall time: collect, counterfactuals, credit, score, update, publish")),
    "Held-out evaluations": _part(
        *(
            (f"{split}/{prefix}{name}{bound}", "share", f"{description}{within}{of}")
            for split, of in (("eval", ""), ("selection", ", on the tasks that choose the best checkpoint"))
            for prefix, within in (("", ""), ("stratum/STRATUM/", " within a stratum"))
            for name, figure in (("accuracy", "mean of the workflow's metric"), ("figure/FIGURE", "a further figure"))
            for bound, description in (
                ("", figure),
                ("_low", "lower bound of its 95 % interval"),
                ("_high", "upper bound"),
            )
        ),
        ("eval/failed", "count", "rollouts that could not be finished"),
        ("selection/failed", "count", "the same, on the tasks that choose the best checkpoint"),
    ),
}
"""All metrics by topic. A loss from a plugin may add metrics under `policy/POLICY/`."""


def find_metric(name: str) -> Metric | None:
    """Find the metric of a name in a run; None if it is not in the set. Of several matches the most specific wins."""
    matches = [metric for metric, pattern in _patterns() if pattern.fullmatch(name)]
    return max(matches, key=lambda metric: len(re.sub("[A-Z]+", "", metric.name)), default=None)


@cache
def _patterns() -> tuple[tuple[Metric, re.Pattern[str]], ...]:
    metrics = (metric for section in SECTIONS.values() for metric in section)
    return tuple((metric, re.compile(re.sub("[A-Z]+", "(.+)", metric.name), re.DOTALL)) for metric in metrics)


def render_metrics_page() -> str:
    """Render the text of `docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "What a run measures, under the names that `run.db`, its report and every tracker use. The set is fixed.",
        "Words in capitals stand for names of the run's own, which may hold a `/`. What is missing has no entry.",
        "Shares are 0 to 1, points 0 to 10. A loss from a plugin may add figures of its own beside those of a policy.",
    ]
    for title, metrics in SECTIONS.items():
        lines += ["", f"## {title}", "", "| name | unit | what it is |", "|---|---|---|"]
        lines += [f"| `{metric.name}` | {metric.unit} | {metric.description} |" for metric in metrics]
    return "\n".join(lines) + "\n"
