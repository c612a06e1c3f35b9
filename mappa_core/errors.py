"""Every error Mappa raises on purpose.

    MappaError
    ├── InputError            invalid user input: one message, exit code 2, nothing half-written
    │   ├── ConfigError       a recipe, a config file or a `key=value`
    │   ├── PluginError       a plugin that is unknown, broken or clashes with another
    │   ├── TaskError         a task file or a row in it
    │   ├── ModelError        a model folder, its tokenizer or its chat template
    │   └── RunError          a run folder: exists, locked, of a newer schema, not writable
    ├── RolloutError          recorded on the trajectory as a Failure; its siblings continue
    │   ├── PromptTooLong     a prompt that does not fit the policy's window (never cut in silence)
    │   ├── ToolError         the infrastructure of a tool failed (a program that fails is a ToolResult)
    │   ├── CoachError        the infrastructure of a coach failed (becomes a `failed` verdict)
    │   ├── CallError         a provider call failed; `kind` says why
    │   └── WorkflowError     the workflow's own code raised
    ├── ReplayError           a replayed workflow diverged from its record
    ├── EngineError           the engine cannot continue; the run resumes from its last checkpoint
    │   └── EngineLost        an engine process died or hangs; the run itself is sound
    └── GuardStop             a guard stopped the run after writing a checkpoint: exit code 3

Plugin authors raise ordinary exceptions; the stage wraps them at the boundary.
"""

from __future__ import annotations

from typing import Literal

CallFault = Literal[
    "rate_limit", "overloaded", "server", "timeout", "connection", "garbled",
    "key", "quota", "model", "request", "schema", "too_long", "spend", "breaker",
]  # fmt: skip
"""Why a provider call failed.

Transient, retried: `rate_limit` (429), `overloaded` (503, 529), `server` (other 5xx), `timeout`, `connection`,
`garbled` (not a valid response: HTML, broken JSON, no reply in it).
Permanent, never retried: `key` (401, 403), `quota` (exhausted at the provider), `model` (404), `request` (400, 422),
`schema` (this structured output is not supported), `too_long` (413, or beyond the model's window).
Raised by Mappa: `spend` (`coach.spend_usd` is reached), `breaker` (circuit breaker open after repeated failures).
"""


class MappaError(Exception):
    """Root of all errors that Mappa raises on purpose."""


class InputError(MappaError, ValueError):
    """Invalid user input. The message says what is wrong, where, and what to do."""


class ConfigError(InputError):
    """A setting is unknown, of the wrong type, missing or contradicts another."""


class PluginError(InputError):
    """A plugin or an offer is unknown, failed to import, or clashes with another."""


class TaskError(InputError):
    """A task file cannot be used; the message names file and row."""


class ModelError(InputError):
    """A model folder cannot be used: weights, tokenizer or chat template are missing or do not load."""


class RunError(InputError):
    """A run folder cannot be used as requested."""


class RolloutError(MappaError):
    """A trajectory could not be finished; it is recorded as a Failure. The steps so far keep their verdicts."""


class PromptTooLong(RolloutError):
    """The prompt plus the tokens to sample exceed the policy's context window."""


class ToolError(RolloutError):
    """The infrastructure of a tool failed: no agent is at fault, so none is scored for it."""


class CoachError(RolloutError):
    """The infrastructure of a coach failed: the verdict is `failed`, the trajectory continues."""


class CallError(RolloutError):
    """A provider call failed. `retry_after_s` is the wait in seconds that the provider asked for, None if it named
    none. The message contains no API key."""

    def __init__(self, kind: CallFault, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: CallFault = kind
        self.retry_after_s = retry_after_s


class WorkflowError(RolloutError):
    """The code of a workflow raised."""


class ReplayError(MappaError):
    """A replayed workflow diverged from the record: its randomness does not come from the stage."""


class EngineError(MappaError):
    """The engine cannot continue."""


class EngineLost(EngineError):
    """An engine process died or hangs; another process can repeat the same work. `actor` names it; None if more than
    one actor is affected."""

    def __init__(self, message: str, *, actor: str | None = None) -> None:
        super().__init__(message)
        self.actor = actor


class GuardStop(MappaError):
    """A guard (missing verdicts, spend) stopped the run; a checkpoint was written."""
