"""Warm starts: policies that start from the weights of another run."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

from mappa.config.compose import ComposedConfig
from mappa.store.checkpoint import POLICIES, PolicyEntry
from mappa.store.checkpoint_ref import ResolvedCheckpoint, resolve_checkpoint
from mappa_core.config.layers import SettingsNode
from mappa_core.config.schema import RunConfig
from mappa_core.errors import ConfigError, RunError
from mappa_core.protocols import PolicySpec


def resolve_starts(composed: ComposedConfig) -> ComposedConfig:
    """Replace `@best` and `@last` in `policies.*.from` by iterations, so that a resumed run starts from the same."""
    starts = {name: policy.start for name, policy in composed.config.policies.items() if policy.start is not None}
    if not starts:
        return composed
    # A copy: the config that the caller composed stays as it is.
    config = copy.deepcopy(composed.config)
    settings = composed.settings
    for name, start in starts.items():
        exact = _find_start(name, start, config).exact
        config.policies[name].start = exact
        settings = _replace_text(settings, ("policies", name, "from"), exact)
    return replace(composed, config=config, settings=settings)


def find_start_folder(spec: PolicySpec, start: str, config: RunConfig) -> Path:
    """Folder of the policy that `spec` starts from. Raises ConfigError if there is none or it is of another kind."""
    named = _find_start(spec.name, start, config)
    policy = named.policy or spec.name
    known = named.checkpoint.manifest.policies
    if policy not in known:
        raise ConfigError(
            f"policies.{spec.name}.from: {named.exact} has no trained policy {policy!r}; it has "
            f"{', '.join(sorted(known)) or 'none'}: name one as RUN/POLICY@…"
        )
    _check_kind(spec, known[policy], f"policies.{spec.name}.from: {policy!r} of {named.exact}")
    return named.checkpoint.path / POLICIES / policy


def _find_start(name: str, start: str, config: RunConfig) -> ResolvedCheckpoint:
    try:
        return resolve_checkpoint(start, root=Path(config.run.root))
    except RunError as error:
        raise ConfigError(f"policies.{name}.from: {error}") from error


def _check_kind(spec: PolicySpec, entry: PolicyEntry, where: str) -> None:
    if spec.kind != entry.kind:
        raise ConfigError(
            f"{where} is of kind {entry.kind}, and policies.{spec.name}.kind is {spec.kind}. Choose the same kind, or "
            f"write a model folder of it (mappa export) and name that as policies.{spec.name}.model."
        )
    if spec.kind == "lora" and (spec.lora, spec.model) != (entry.lora, entry.model):
        raise ConfigError(
            f"{where} is {entry.lora} on {entry.model}, and policies.{spec.name} is {spec.lora} on {spec.model}: an "
            "adapter goes on as what it is, on the model that it was trained on"
        )


def _replace_text(tree: SettingsNode, path: tuple[str, ...], value: str) -> SettingsNode:
    """Replace the text at `path`; origins are kept."""
    if not path:
        return SettingsNode(value, tree.origin)
    first, *rest = path
    return SettingsNode({**tree.fields, first: _replace_text(tree.fields[first], tuple(rest), value)}, tree.origin)
