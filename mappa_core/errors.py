"""Every error Mappa raises on purpose.

    MappaError
    ├── InputError            what the user gave is wrong: one message, exit code 2, nothing half-written
    │   ├── ConfigError       a recipe, a config file or a `key=value`
    │   ├── PluginError       a plugin that is unknown, broken or clashes with another
    │   ├── TaskError         a task file or a row in it
    │   ├── ModelError        a model folder, its tokenizer or its chat template
    │   └── RunError          a run folder: exists, locked, of a newer schema, not writable
    ├── RolloutError          recorded on the trajectory as a Failure; its siblings go on
    │   ├── PromptTooLong     a prompt that does not fit the policy's window (never cut in silence)
    │   ├── ToolError         the machinery of a tool failed (a program that fails is a ToolResult)
    │   ├── CoachError        the machinery of a coach failed (becomes a `failed` verdict)
    │   ├── CallError         a provider did not answer a call; `kind` says why
    │   └── WorkflowError     the workflow's own code raised
    ├── ReplayError           a workflow asked for something else than what was recorded
    ├── EngineError           the engine cannot go on; the run resumes from its last checkpoint
    │   ├── SyncError         samplers could not be given the learner's weights, or hold others
    │   └── EngineLost        a process of the engine is gone or hangs: nothing is wrong with the run itself
    │       ├── ActorLost     it died, or its node did
    │       └── ActorLate     it is there and does not answer in time
    └── GuardStop             a guard stopped the run after writing a checkpoint: exit code 3

Authors of plugins raise ordinary exceptions: the stage names them at the boundary.
"""

from __future__ import annotations

from typing import Literal

CallFault = Literal[
    "rate_limit", "overloaded", "server", "timeout", "connection", "garbled",
    "key", "quota", "model", "request", "schema", "too_long", "spend", "breaker",
]  # fmt: skip
"""Why a provider did not answer.

Passing, worth another try: `rate_limit` (429), `overloaded` (503, 529), `server` (other 5xx), `timeout`, `connection`,
`garbled` (an answer that is none: HTML, broken JSON, no reply in it).
Lasting, never tried again: `key` (401, 403), `quota` (nothing left to spend there), `model` (404), `request` (400,
422), `schema` (the server cannot do this structured output), `too_long` (413, or beyond the model's window).
Ours: `spend` (`coach.spend_usd` is reached), `breaker` (the provider failed so often that it is left alone a while).
"""


class MappaError(Exception):
    """Root of all errors that Mappa raises on purpose."""


class InputError(MappaError, ValueError):
    """What the user gave is wrong. The message says what, where and what to do."""


class ConfigError(InputError):
    """A setting is unknown, of the wrong type, missing or contradicts another."""


class PluginError(InputError):
    """A plugin or an offer is unknown, failed to import, or clashes with another."""


class TaskError(InputError):
    """A task file cannot be used; the message names file and row."""


class ModelError(InputError):
    """A model folder cannot be used: weights, tokenizer or chat template are missing or do not load."""


class RunError(InputError):
    """A run folder cannot be used as asked."""


class RolloutError(MappaError):
    """A trajectory could not be finished; it is recorded as a Failure. Its steps so far keep their verdicts."""


class PromptTooLong(RolloutError):
    """A prompt and the tokens to be sampled do not fit the policy's window."""


class ToolError(RolloutError):
    """The machinery of a tool failed: nobody's fault, so no agent is scored for it."""


class CoachError(RolloutError):
    """The machinery of a coach failed: the verdict is `failed`, the trajectory goes on."""


class CallError(RolloutError):
    """A provider did not answer a call. `retry_after_s` is how many seconds it asked to be left alone, None where it
    did not say. The message holds no key."""

    def __init__(self, kind: CallFault, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: CallFault = kind
        self.retry_after_s = retry_after_s


class WorkflowError(RolloutError):
    """The code of a workflow raised."""


class ReplayError(MappaError):
    """A replayed workflow diverged from the record: its randomness does not come from the stage."""


class EngineError(MappaError):
    """The engine cannot go on."""


class SyncError(EngineError):
    """New weights did not reach a sampler, or not as the learner sent them. The message names policy and engine."""


class EngineLost(EngineError):
    """A process of the engine is gone or hangs: the same work can be done again by another. `actor` names it; None:
    not one actor alone."""

    def __init__(self, message: str, *, actor: str | None = None) -> None:
        super().__init__(message)
        self.actor = actor


class ActorLost(EngineLost):
    """An actor died, was killed, or went with its node. The message says how it ended."""


class ActorLate(EngineLost):
    """An actor did not answer in time, or shows no sign of life. It may still be there: whoever started it ends it."""


class GuardStop(MappaError):
    """A guard (missing verdicts, spend) stopped the run; a checkpoint was written."""
