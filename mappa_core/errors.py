"""Errors that Mappa raises on purpose. Authors of plugins raise ordinary ones; the stage wraps them at the boundary."""

from __future__ import annotations

from typing import Literal

CallFault = Literal[
    "rate_limit", "overloaded", "server", "timeout", "connection", "garbled",
    "key", "quota", "model", "request", "schema", "too_long", "spend", "breaker",
]  # fmt: skip
"""Why a provider call failed.

Transient, retried: `rate_limit` (429), `overloaded` (503, 529), `server` (other 5xx), `timeout`, `connection`,
`garbled` (HTML, broken JSON, no reply in it).
Permanent, never retried: `key` (401, 403), `quota` (exhausted at the provider), `model` (404), `request` (400, 422),
`schema` (this structured output is not supported), `too_long` (413, or beyond the model's window).
Raised by Mappa: `spend` (`coach.spend_usd` is reached), `breaker` (circuit breaker open after repeated failures).
"""


class MappaError(Exception):
    """Root of all errors that Mappa raises on purpose."""


class Terminated(SystemExit):
    """The process was asked to end (SIGTERM): no plugin's own exit, which is a fault of the plugin."""


class InputError(MappaError, ValueError):
    """Invalid user input: the message says what is wrong, where, and what to do. Exit code 2, nothing half-written."""


class ConfigError(InputError):
    """A setting is unknown, of the wrong type, missing or contradicts another."""


class MissingSetting(ConfigError):
    """A setting without a default was given no value."""


class PluginError(InputError):
    """A plugin or an offer is unknown, failed to import, or clashes with another."""


class TaskError(InputError):
    """A task file cannot be used; the message names file and row."""


class RunError(InputError):
    """A run folder cannot be used as requested: it exists, is locked, of another schema or not writable."""


class RolloutError(MappaError):
    """A trajectory could not be finished: it has a Failure, its steps keep their verdicts, its siblings continue."""


class PromptTooLong(RolloutError):
    """The prompt plus the tokens to sample exceed the policy's window: it is never cut in silence."""


class ToolError(RolloutError):
    """The infrastructure of a tool failed (a program that fails is a ToolResult): no agent is scored for it."""


class CoachError(RolloutError):
    """The infrastructure of a coach failed: the verdict is `failed`, the trajectory continues."""


class CallError(RolloutError):
    """A provider call failed, `kind` says why. It asked to wait for `retry_after_s`. The message holds no key. `free`:
    it is certain that the provider bills nothing, as for a call that did not reach it."""

    def __init__(self, kind: CallFault, why: str, *, retry_after_s: float | None = None, free: bool = False) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind: CallFault = kind
        self.retry_after_s = retry_after_s
        self.free = free


class WorkflowError(RolloutError):
    """The code of a workflow raised."""


class ReplayError(MappaError):
    """A replayed workflow diverged from the record: its randomness does not come from the stage."""


class EngineError(MappaError):
    """The engine cannot continue; the run resumes from its last checkpoint."""


class EngineLost(EngineError):
    """An engine process died or hangs: another can repeat the work. `actor` names it, None for several."""

    def __init__(self, message: str, *, actor: str | None = None) -> None:
        super().__init__(message)
        self.actor = actor


class GuardStop(MappaError):
    """A guard (missing verdicts, spend) stopped the run after writing a checkpoint: exit code 3."""
