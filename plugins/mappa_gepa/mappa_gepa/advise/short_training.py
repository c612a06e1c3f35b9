"""A short training of one agent, from the weights of a run: what a trial of a fix that changes weights plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa.commands import RunProgress
from mappa.runs import RunReader
from mappa.sessions import ComposedConfig, Run, assign_policies, format_yaml, with_origin
from mappa_core import Registry, Trajectory
from mappa_core.files import write_atomic
from mappa_core.transport import Provider
from mappa_gepa.advise.evidence import mean_usd
from mappa_gepa.advise.fixes import Fix

SETTINGS_NAME = "advised.yaml"
CHECKS = 1
"""Rollouts of the evaluation after the training, of one task."""
ONLY_AGENT = "only_agent"
SFT_WEIGHT, SFT_MAX_SCORE = 1.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortTraining:
    """What a short training left: `weights` is the folder of its last checkpoint, `words` are settings of the team that
    plays with them, and `settings` a config file for any run. `usd` is None if a price is unknown."""

    weights: Path
    words: tuple[str, ...]
    settings: Path
    rollouts: int
    usd: float | None


def rollouts_per_iteration(composed: ComposedConfig) -> int:
    """Rollouts of one iteration of the run's training."""
    return composed.config.train.prompts * composed.config.train.samples


async def train_shortly(
    fix: Fix,
    compose: Callable[..., ComposedConfig],
    registry: Registry,
    *,
    agents: Sequence[str],
    weights: Path | None,
    rollouts: int,
    on_providers: Callable[[Sequence[Provider]], None],
    on_rollout: Callable[[Trajectory], None],
) -> ShortTraining:
    """Train the agent of `fix` for as many iterations as `rollouts` are enough for, with the settings that `compose`
    gives to a run with further words. The team starts with the checkpoint `weights`, or where None with its models.

    Raises:
        ConfigError, PluginError: the run cannot be built.
        GuardStop: the spending cap is reached, or a provider or a tool failed.
    """
    origin = compose()
    iterations = (rollouts - CHECKS) // rollouts_per_iteration(origin)
    kind = _kind_word(fix, origin, agents)
    words = (*kind, *_training_words(fix, origin, iterations), *start_words(origin, agents, weights))
    listener = _Listener(on_providers, on_rollout)
    result = await asyncio.to_thread(Run(compose(*words), registry).train, listener)
    with RunReader(result.folder) as reader:
        checkpoint = reader.checkpoints[iterations]
        played = [reader.trajectory(row.id) for row in reader.trajectories]
    usd = mean_usd(played)
    return ShortTraining(
        weights=checkpoint,
        words=kind,
        settings=_write_settings(result.folder, fix, compose(*kind), agents, iterations),
        rollouts=len(played),
        usd=None if usd is None else usd * len(played),
    )


class _Listener(RunProgress):
    def __init__(
        self, on_providers: Callable[[Sequence[Provider]], None], on_rollout: Callable[[Trajectory], None]
    ) -> None:
        super().__init__()
        self._on_providers = on_providers
        self._on_rollout = on_rollout

    def on_providers(self, providers: Sequence[Provider]) -> None:
        self._on_providers(providers)

    def on_rollout_end(self, trajectory: Trajectory) -> None:
        self._on_rollout(trajectory)


def _kind_word(fix: Fix, composed: ComposedConfig, agents: Sequence[str]) -> tuple[str, ...]:
    """An adapter, where the agent's policy is not trained as it is."""
    name = assign_policies(composed.config, agents)[fix.agent]
    return (f"policies.{name}.kind=lora",) if _kind_of(composed, name) == "frozen" else ()


def _training_words(fix: Fix, composed: ComposedConfig, iterations: int) -> tuple[str, ...]:
    """Settings by which the agent of `fix` alone learns; SFT learns from corrections alone, as equal rewards teach
    nothing. One held-out task is evaluated at the end, as a run evaluates at least one there."""
    # Whom the run trained alone does not decide whom the trial trains.
    shapers = [one for one in composed.settings.plain["shapers"] if one["use"] != ONLY_AGENT]
    if fix.kind == "sft":
        shapers.append({"use": "scale", "options": {"low": 0.0, "high": 0.0}})
    shapers.append({"use": ONLY_AGENT, "options": {"agent": fix.agent}})
    words = [
        f"shapers={json.dumps(shapers)}", f"train.iterations={iterations}", f"checkpoint.every={iterations}",
        "checkpoint.best=false", "checkpoint.url=null", "eval.before=false", "eval.every=0", "eval.samples=1",
        "eval.problems=1", "eval.coach=false", "prompts=null",
    ]  # fmt: skip
    if fix.kind == "sft":
        words += [f"train.supervised.weight={SFT_WEIGHT}", f"train.supervised.max_score={SFT_MAX_SCORE}"]
    return tuple(words)


def start_words(composed: ComposedConfig, agents: Sequence[str], weights: Path | None) -> tuple[str, ...]:
    """Settings by which the trained policies of a team start with the checkpoint `weights`."""
    if weights is None:
        return ()
    return tuple(f"policies.{name}.from={json.dumps(ref)}" for name, ref in _starts(composed, agents, weights).items())


def _starts(composed: ComposedConfig, agents: Sequence[str], weights: Path) -> Mapping[str, str]:
    """Where the trained policies of a config start, by name: at a checkpoint of a run."""
    run, iteration = weights.parent.parent, int(weights.name)
    names = dict.fromkeys(assign_policies(composed.config, agents).values())
    return {name: f"{run}@{iteration}" for name in names if _kind_of(composed, name) in ("full", "lora")}


def _kind_of(composed: ComposedConfig, name: str) -> str:
    section = composed.config.policies.get(name, composed.config.policies.get("default"))
    assert section is not None  # a fix of it was listed
    return section.kind


def _write_settings(folder: Path, fix: Fix, composed: ComposedConfig, agents: Sequence[str], iterations: int) -> Path:
    """Write a config file by which a team starts with the weights of a short training."""
    own = assign_policies(composed.config, agents)[fix.agent]
    weights = folder.resolve() / "checkpoints" / f"{iterations:06d}"
    policies = {name: {"from": ref} for name, ref in _starts(composed, agents, weights).items()}
    if fix.kind != "train" and _kind_of(composed, own) == "lora":
        policies[own]["kind"] = "lora"
    path = folder / SETTINGS_NAME
    write_atomic(path, format_yaml(with_origin({"policies": policies}, "mappa advise")))
    return path
