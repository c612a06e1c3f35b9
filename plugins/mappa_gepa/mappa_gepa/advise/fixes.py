"""Fixes of a team that can be considered, and what making each would take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mappa.commands import did_you_mean
from mappa.sessions import RunConfig, assign_policies
from mappa_core import ConfigError, Workflow
from mappa_gepa.advise.evidence import Evidence
from mappa_gepa.options import DEFAULT_ROLLOUTS

FixKind = Literal["swap", "prompt", "sft", "adapter", "train", "model"]
TRAINED: tuple[FixKind, ...] = ("sft", "adapter", "train")
"""Fixes that change weights."""
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A change of one `agent`: another prompt; SFT on the corrections of its coach, an adapter on its frozen model, or
    training of the weights or the adapter that it has; the `policy` of the config in place of its own; or a swap of its
    policy with that of the agent `other`."""

    kind: FixKind
    agent: str
    policy: str | None = None
    other: str | None = None

    @property
    def name(self) -> str:
        """What is changed, without the agent."""
        if self.other is not None:
            return f"swap with {self.other}"
        return self.kind if self.policy is None else f"{self.kind} {self.policy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a fix takes. `measured`: by its trial; otherwise estimated from the run. None: unknown. Estimated hours
    of a search are as if its rollouts were played one after another. The proposer of an untried fix, and machines of
    one's own, are not in the dollars."""

    rollouts: int
    usd: float | None
    hours: float | None
    measured: bool


def list_fixes(
    config: RunConfig,
    workflow: Workflow,
    models: Sequence[tuple[str, str]],
    swaps: Sequence[tuple[str, str]],
    corrected: Collection[str],
) -> tuple[Fix, ...]:
    """The fixes of every agent. `models`: pairs of agent and policy; `swaps`: pairs of agents; `corrected`: agents for
    whose actions a coach wrote a better one. Raises ConfigError if a policy is not in the config, or is the agent's
    own, or if two agents that swap play by equal policies."""
    agents = tuple(workflow.agents)
    policy_of = assign_policies(config, agents)
    for agent, policy in models:
        if policy not in config.policies:
            raise ConfigError(
                f"--model {agent}={policy}: no such policy in the config.{did_you_mean(policy, config.policies)} "
                f"A new one is given by policies.{policy}.kind=api policies.{policy}.use=OFFER …"
            )
        if policy == policy_of[agent]:
            raise ConfigError(f"--model {agent}={policy}: that is the policy of {agent} already")
    for first, second in swaps:
        sections = [config.policies.get(policy_of[agent], config.policies.get("default")) for agent in (first, second)]
        is_equal = sections[0] == sections[1] and sections[0] is not None and sections[0].kind not in ("full", "lora")
        if is_equal or policy_of[first] == policy_of[second]:
            raise ConfigError(f"--swap {first}={second}: both play by equal policies, so that nothing would change")
    found = [fix for agent in agents for fix in _fixes_of(agent, config, workflow, models, policy_of[agent], corrected)]
    return (*found, *(Fix(kind="swap", agent=first, other=second) for first, second in swaps))


def _fixes_of(
    agent: str,
    config: RunConfig,
    workflow: Workflow,
    models: Sequence[tuple[str, str]],
    policy: str,
    corrected: Collection[str],
) -> Iterator[Fix]:
    if agent in workflow.prompts:
        yield Fix(kind="prompt", agent=agent)
    section = config.policies.get(policy, config.policies.get("default"))
    if section is not None and section.kind != "api":
        if agent in corrected:
            yield Fix(kind="sft", agent=agent)
        yield Fix(kind="adapter" if section.kind == "frozen" else "train", agent=agent)
    yield from (Fix(kind="model", agent=agent, policy=other) for name, other in models if name == agent)


def estimate_cost(fix: Fix, config: RunConfig, evidence: Evidence) -> Cost:
    """Estimate what a fix takes that was not tried: a search with the defaults of `mappa improve`, a training with the
    settings of the run, or nothing but the setting."""
    if fix.kind in ("model", "swap"):
        return Cost(rollouts=0, usd=0.0, hours=0.0, measured=False)
    if fix.kind == "prompt":
        rollouts = DEFAULT_ROLLOUTS
        hours: float | None = rollouts * evidence.seconds_per_rollout / SECONDS_PER_HOUR
    else:
        train = config.train
        rollouts = train.iterations * train.prompts * train.samples
        seconds = evidence.seconds_per_iteration
        hours = None if seconds is None else train.iterations * seconds / SECONDS_PER_HOUR
    usd = None if evidence.usd_per_rollout is None else rollouts * evidence.usd_per_rollout
    return Cost(rollouts=rollouts, usd=usd, hours=hours, measured=False)
