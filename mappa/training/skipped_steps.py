"""Skipped optimiser steps: saves the rows on which loss or gradient was not finite."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import structlog

from mappa.store.folder import RunFolder
from mappa_core.credit.build_experience import select_rows
from mappa_core.credit.ragged import element_indices
from mappa_core.errors import GuardStop
from mappa_core.experience import Advantages, Experience
from mappa_core.files import write_file

SKIPPED = "skipped"
"""Folder in a run folder that keeps the rows of skipped steps, and event that names each file."""

DEMONSTRATIONS = "demonstrations"
PolicyMetrics = Mapping[str, Mapping[str, float]]

log = structlog.get_logger()


class SkippedSteps:
    """Saves the rows of skipped steps, and stops a run after `max_skipped` skipped steps of a policy in a row. Engines
    do not report the order of an iteration's steps: the skipped ones count as the last."""

    def __init__(self, folder: RunFolder, *, max_skipped: int) -> None:
        self._path = folder.path / SKIPPED
        self._store = folder.store
        self._max_skipped = max_skipped

    def save(self, iteration: int, policies: PolicyMetrics, experience: Experience, advantages: Advantages) -> None:
        """Write the rows of each policy that skipped steps of `iteration`, from 1, to `skipped/000012-POLICY.npz`.

        The file holds every column of its Experience by name, those of its demonstrations as `demonstrations.row` and
        so on, `advantages` and `value_targets`. Raises RunError if the storage fails.
        """
        for policy, steps in _skipped(policies).items():
            file = self._path / f"{iteration:06d}-{policy}.npz"
            rows = np.flatnonzero(experience.policy == experience.policies.index(policy))
            write_file(self._path.parent, f"{SKIPPED}/{file.name}", _archive(experience, advantages, rows))
            skipped = {"iteration": iteration, "policy": policy, "steps": steps}
            self._store.record_event(SKIPPED, **skipped, file=f"{SKIPPED}/{file.name}")
            log.warning("update.skipped", **skipped, kept=str(file))

    def guard(self, iteration: int, policies: PolicyMetrics) -> None:
        """Raise GuardStop if a policy reached the limit in `iteration`, whose metrics are in the store."""
        skipped = _skipped(policies)
        if not skipped:
            return
        # From the store, so the count goes on where a run was resumed; it may hold iterations that are trained again.
        metrics = [report.policies for report in self._store.iterations() if report.iteration <= iteration]
        for policy in skipped:
            in_a_row = count_consecutive_skips(metrics, policy)
            if in_a_row >= self._max_skipped:
                raise GuardStop(
                    f"policy {policy!r}: {in_a_row} optimiser steps in a row were skipped (train.max_skipped="
                    f"{self._max_skipped}), as their loss or gradient was not finite. Its weights are as before them; "
                    f"what they were skipped on lies in {self._path}. A lower train.learning_rate may help."
                )


def count_consecutive_skips(iterations: Sequence[PolicyMetrics], policy: str) -> int:
    """Count the last consecutive skipped steps of a policy in the metrics of all iterations so far."""
    in_a_row = 0
    for policies in reversed(iterations):
        metrics = policies.get(policy, {})
        in_a_row += int(metrics.get("skipped") or 0)
        # An iteration that took any step ends the row; the steps that it skipped count as its last.
        if metrics.get("steps"):
            break
    return in_a_row


def _skipped(policies: PolicyMetrics) -> dict[str, int]:
    """Skipped steps of each policy that skipped any."""
    return {policy: int(metrics["skipped"]) for policy, metrics in policies.items() if metrics.get("skipped")}


def _archive(experience: Experience, advantages: Advantages, rows: Any) -> bytes:
    """Rows of an experience as an .npz file; strings are text arrays, so that it loads without pickle."""
    part = select_rows(experience, rows)
    columns = {column.name: getattr(part, column.name) for column in fields(part) if column.name != DEMONSTRATIONS}
    if part.demonstrations is not None:
        for column in fields(part.demonstrations):
            columns[f"{DEMONSTRATIONS}.{column.name}"] = getattr(part.demonstrations, column.name)
    tokens = element_indices(experience.offsets, rows)
    columns["advantages"] = advantages.advantages[tokens]
    if advantages.value_targets is not None:
        columns["value_targets"] = advantages.value_targets[tokens]
    file = io.BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(column) for name, column in columns.items() if column is not None}
    np.savez_compressed(file, **arrays)
    return file.getvalue()
