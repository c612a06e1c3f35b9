"""Policies of a run: assigns policies to agents and builds their specs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa.config.compose import OfferChoice, choices_in
from mappa.session.start_weights import find_start_folder
from mappa.store.checkpoint import REFERENCE
from mappa_core.calls.api_policy import ApiPolicy
from mappa_core.config.schema import AgentSection, LoraSection, PolicySection, RunConfig
from mappa_core.credit.teachers import find_teacher_policies
from mappa_core.errors import ConfigError
from mappa_core.files import has_folder
from mappa_core.hookspecs import Offer
from mappa_core.plugins import Registry
from mappa_core.protocols import Engine, Estimator, Lora, PolicySpec
from mappa_core.safe_files import UnsafeFileError, split_name

_TRAINED = ("full", "lora")


def assign_policies(config: RunConfig, agents: Sequence[str]) -> dict[str, str]:
    """Map each agent to the name of its policy: `agents.NAME.policy`, or the agent's own name."""
    named = {agent: section.policy for agent, section in config.agents.items() if section.policy is not None}
    return {agent: named.get(agent, agent) for agent in agents}


def trained_policies(config: RunConfig, names: Iterable[str]) -> frozenset[str]:
    """The trained policies among `names`."""
    return frozenset(name for name in names if _section(name, config).kind in _TRAINED)


def policies_with_weights(config: RunConfig, agents: Sequence[str]) -> tuple[str, ...]:
    """Names of the policies that an engine has to load, each once: those that are not behind an API."""
    names = dict.fromkeys(assign_policies(config, agents).values())
    return tuple(name for name in names if _section(name, config).kind != "api")


def reads_reference(config: RunConfig) -> bool:
    """Whether an estimator, the loss or a health rule reads the references. An estimator or a loss does not if it has
    an option `kl_coef` that is 0."""
    estimators = (config.estimator.options, *(own.options for own in config.estimator.by_agent.values()))
    has_penalty = any(getattr(options, "kl_coef", None) != 0 for options in (*estimators, config.loss.options))
    return has_penalty or config.train.health.kl is not None


def build_policy_specs(config: RunConfig, names: Iterable[str]) -> tuple[PolicySpec, ...]:
    """Build the specs of the policies that an engine has to load, each once. They are enough for a plan: `reference` is
    no folder yet, and only tells that there will be one (`find_starts`). Raises ConfigError for a name that no folder
    in a checkpoint can have."""
    return tuple(_spec(name, config) for name in dict.fromkeys(names))


def find_starts(
    specs: Iterable[PolicySpec], config: RunConfig, *, loaded: Path | None, learning: bool
) -> tuple[PolicySpec, ...]:
    """Find the weights that policies start from (`policies.*.from`) and, if they learn, that their references have:
    those that this run started from, whatever is `loaded` over the policies themselves.

    Args:
        loaded: folder of the policies of a checkpoint that will be loaded; None: there is none.

    Raises ConfigError if there are no such weights.
    """
    return tuple(_find_start(spec, config, loaded=loaded, learning=learning) for spec in specs)


def _find_start(spec: PolicySpec, config: RunConfig, *, loaded: Path | None, learning: bool) -> PolicySpec:
    start = _section(spec.name, config).start
    has_own_reference = learning and spec.reference is not None
    if start is None:
        return spec
    if loaded is None:
        folder = find_start_folder(spec, start, config)
        return replace(spec, start=folder, reference=folder if has_own_reference else None)
    if not has_own_reference:
        return replace(spec, reference=None)
    if has_folder(loaded, f"{spec.name}/{REFERENCE}"):
        return replace(spec, reference=loaded / spec.name / REFERENCE)
    # The checkpoint was written while nothing read the reference.
    try:
        return replace(spec, reference=find_start_folder(spec, start, config))
    except ConfigError as error:
        raise ConfigError(
            f"{error}. The run goes on from a checkpoint without the weights of its reference, which nothing read until"
            " then: bring back what it started from, or set train.health.kl=null if nothing else reads the reference"
        ) from error


def check_estimators(config: RunConfig, registry: Registry, agents: Sequence[str]) -> None:
    """Raise ConfigError where weights are frozen and there is nothing to learn; for an estimator of an agent that is
    not trained, one that needs values of a policy without a value head, and one that compares samples where a task has
    one."""
    policy_of, by_agent = assign_policies(config, agents), config.estimator.by_agent
    trained = trained_policies(config, policy_of.values())
    if not trained and policies_with_weights(config, agents) and config.prompts is None:
        raise ConfigError(
            "policies: all that have weights are frozen, so that none is trained; set policies.default.kind=full, or "
            "use mappa eval, which plays without training"
        )
    for agent, policy in policy_of.items():
        key = f"estimator.by_agent.{agent}" if agent in by_agent else "estimator"
        if policy in trained:
            chosen = by_agent.get(agent, config.estimator)
            for place, part in ((key, chosen), *choices_in(chosen.options, f"{key}.options")):
                _check_estimator(config, registry.offer("estimators", str(part.use)), place, agent, policy)
                _check_phases(config, part, place)
        elif agent in by_agent:
            raise ConfigError(
                f"{key}: the policy {policy!r} of agent {agent!r} is not trained, so nothing is estimated for it; "
                "remove the setting"
            )


def _check_estimator(config: RunConfig, offer: Offer[Any], key: str, agent: str, policy: str) -> None:
    if offer.values and not _section(policy, config).value_head:
        named = policy if policy in config.policies else "default"
        raise ConfigError(
            f"{key}.use={offer.name} needs values, and the policy {policy!r} of agent {agent!r} has no value head; set "
            f"policies.{named}.value_head=true, or choose an estimator that needs none"
        )
    if offer.siblings and config.train.samples == 1:
        raise ConfigError(
            f"{key}.use={offer.name} compares the samples of a task, and train.samples=1 leaves nothing to compare "
            "with, so that nothing would be learned; set it to 2 or more, or choose another estimator"
        )


def _check_phases(config: RunConfig, chosen: OfferChoice, key: str) -> None:
    for phase in getattr(chosen.options, "phases", ()):
        if not config.coach.reward.get(phase):
            coach = "a coach at coach.hindsight.use and " if phase == "after" and config.coach.hindsight is None else ""
            raise ConfigError(
                f"{key}.use={chosen.use} reads verdicts of the phase {phase!r}, and none are given; set {coach}"
                f"coach.reward.{phase}=1, or change {key}.options so that they are not read"
            )


def check_temperatures(config: RunConfig, agents: Sequence[str]) -> None:
    """Raise ConfigError if an agent whose policy is trained samples greedily: the probability of what it does then has
    no gradient."""
    for agent, policy in assign_policies(config, agents).items():
        if _section(policy, config).kind not in _TRAINED:
            continue
        own = config.agents.get(agent, AgentSection()).temperature
        temperature = config.sampling.temperature if own is None else own
        if temperature == 0.0:
            key = "sampling.temperature=0" if own is None else f"agents.{agent}.temperature=0"
            remedy = "above 0"
        elif config.sampling.top_k == 1:
            key, remedy = "sampling.top_k=1", "to 0 (no limit) or above 1"
        else:
            continue
        raise ConfigError(
            f"{key}: agent {agent!r} is trained, and greedy actions teach nothing; set it {remedy} "
            "(eval.temperature may be 0)"
        )


def find_teachers(config: RunConfig, agents: Sequence[str], estimator: Estimator) -> tuple[str, ...]:
    """Return the policies that an estimator names as teachers, whether agents play by them or not.

    Raises ConfigError if one is no policy of the run, has no weights, or must not teach an agent."""
    teachers = find_teacher_policies(estimator, agents, config.coach.reference_for)
    known = dict.fromkeys((*assign_policies(config, agents).values(), *config.policies))
    # A section for policies that have none of their own, and no policy itself.
    known.pop("default", None)
    for name in teachers:
        if name not in known:
            raise ConfigError(f"estimator: the teacher {name!r} is no policy of this run; those are {', '.join(known)}")
        if _section(name, config).kind == "api":
            raise ConfigError(
                f"estimator: the teacher {name!r} is behind an API, which scores no given tokens; choose a policy of "
                "kind full, lora or frozen"
            )
    return teachers


def check_scored(engine: Engine, config: RunConfig, teachers: Iterable[PolicySpec]) -> None:
    """Raise ConfigError if the engine cannot score tokens by a policy that teaches."""
    for spec in teachers:
        if not engine.can_score(spec):
            raise ConfigError(
                f"estimator: engine.use={config.engine.use} cannot score tokens by the teacher {spec.name!r}, which is "
                f"{spec.kind}; choose a teacher that is trained, or another engine"
            )


def build_api_policies(config: RunConfig, registry: Registry, names: Iterable[str]) -> dict[str, ApiPolicy]:
    """Build the policies behind an API, by name. Equal sections share one object, so its client and limits."""
    built: list[tuple[PolicySection, ApiPolicy]] = []
    api_policies: dict[str, ApiPolicy] = {}
    for name in dict.fromkeys(names):
        section = _section(name, config)
        if section.kind != "api" or section.use is None:
            continue
        same = next((policy for other, policy in built if other == section), None)
        api_policies[name] = same or registry.build("policies", section.use, section.options)
        built.append((section, api_policies[name]))
    return api_policies


def _section(name: str, config: RunConfig) -> PolicySection:
    section = config.policies.get(name, config.policies.get("default"))
    if section is None:
        raise ConfigError(f"policies.{name}: not set, and there is no policies.default; set policies.default.model=…")
    return section


def _spec(name: str, config: RunConfig) -> PolicySpec:
    section = _section(name, config)
    try:
        split_name(name)
    except UnsafeFileError as error:
        raise ConfigError(
            f"policies: {name!r} cannot be the name of a policy: its folder in a checkpoint would lie elsewhere. Give "
            "the agent a policy of another name (agents.NAME.policy)"
        ) from error
    assert section.model is not None  # A config without one is not composed.
    kind: Any = section.kind
    has_own_reference = section.start is not None and kind in _TRAINED and reads_reference(config)
    return PolicySpec(
        name=name,
        model=section.model,
        kind=kind,
        lora=_lora(section.lora) if kind == "lora" else None,
        reference=Path(str(section.start)) if has_own_reference else None,
        value_head=section.value_head,
        template_kwargs=section.template_kwargs,
    )


def _lora(section: LoraSection) -> Lora:
    targets = None if section.targets is None else tuple(section.targets)
    return Lora(rank=section.rank, alpha=section.alpha, targets=targets, rslora=section.rslora)
