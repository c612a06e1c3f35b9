"""Verdicts that were paid for, by what the coach saw: a run that goes on pays none of them twice."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from mappa_core.records import Scene, Step, Verdict
from mappa_core.store.codec import to_json
from mappa_core.store.schema import Database


def key(scene: Scene, coach: str, options: str) -> str:
    """A hash of what a coach sees of a scene, its name and a hash of its options.

    The step's id is part of it: two equal actions get a verdict each, as a coach may draw at random or learn between
    them. Durations, tokens and log-probabilities are not: no coach sees them.
    """
    seen = (
        coach,
        options,
        scene.step.id,
        scene.task,
        scene.role,
        _seen(scene.step),
        [_seen(step) for step in scene.earlier],
        None if scene.later is None else [_seen(step) for step in scene.later],
        scene.outcome,
    )
    return sha256(to_json(seen)).hexdigest()


def _seen(step: Step) -> tuple[Any, ...]:
    results = [
        (result.tool, result.status, result.exit_code, result.stdout, result.stderr, result.files, result.truncated)
        for result in step.results
    ]
    finish = step.completion.finish
    return step.agent, step.turn, step.messages, step.reply, finish, step.calls, results, step.breaches, step.files


class VerdictCache:
    """The table `verdict_cache` of a run's database. Only the writer of the run holds one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, key: str) -> Verdict | None:
        """The verdict that was put under `key`, if any."""
        found = self._database.rows("SELECT verdict FROM verdict_cache WHERE key = ?", key)
        return self._database.unpack(Verdict, found[0][0]) if found else None

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict; the first one under a key stands. A failed one is not kept, as asking again may succeed."""
        if verdict.status == "failed":
            return
        with self._database.writing() as connection:
            text = self._database.pack(verdict)
            connection.execute("INSERT INTO verdict_cache VALUES (?, ?) ON CONFLICT DO NOTHING", (key, text))
