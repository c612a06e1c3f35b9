"""Settings in which a recorded run differs from the one that is planned, and which figures depend on them."""

from __future__ import annotations

from pathlib import Path

from mappa.config.compose import ComposedConfig, read_stored
from mappa.config.resume_diff import diff_settings
from mappa.store.folder import CONFIG

_FREE_COACH_KEYS = ("price", "limits")
_BATCH_KEY = ".batch_api"
"""Settings that affect how long replies take and what they cost, and nothing else."""
_MACHINE_KEYS = ("engine.", "policies.")
_TEAM_KEYS = (
    "tasks.", "workflow.", "agents.", "sampling.max_tokens", "sampling.temperature", "train.dynamic_sampling",
)  # fmt: skip
"""Settings that affect the actions of agents, or how many are replaced, in addition to those of the machine."""
_MEMORY_KEYS = (
    *_MACHINE_KEYS, *_TEAM_KEYS, "sampling.concurrency", "train.prompts", "train.samples", "train.micro_tokens",
    "train.minibatch_rows", "train.entropy_coef", "train.supervised", "loss.", "estimator.",
)  # fmt: skip
"""Settings that affect the peak of memory."""


def find_changed(previous: Path, now: ComposedConfig) -> list[str]:
    """Settings in which the run in `previous` differs. Raises RunError if it is not a run."""
    before = read_stored(previous / CONFIG).settings
    return [change.key for change in diff_settings(before, now.settings)]


def affects_work(key: str) -> bool:
    """Whether what was measured of actions and verdicts may not hold with another value of this setting."""
    if key.startswith(("coach.use", "coach.options.", "coach.by_agent.", "coach.hindsight.", "coach.reference_for")):
        return not any(f".{free}" in key for free in _FREE_COACH_KEYS)
    return key.startswith((*_MACHINE_KEYS, *_TEAM_KEYS))


def affects_coaches(key: str) -> bool:
    """Whether a setting that affects the work is one of what coaches are asked."""
    return key.startswith("coach.") and _BATCH_KEY not in key


def affects_speed(key: str) -> bool:
    """Whether a token takes another time with another value of this setting."""
    return key.startswith(_MACHINE_KEYS) or _BATCH_KEY in key


def affects_memory(key: str) -> bool:
    """Whether the peak of memory is another one with another value of this setting."""
    return key.startswith(_MEMORY_KEYS)
