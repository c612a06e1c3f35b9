"""Data sets of reasoning-gym as tasks.

A task records how it was drawn (data set, parameters, number), so that its grader can draw it again: the library grades
an answer against the whole entry, of which a task holds question and answer alone. The hash of a question decides
whether it is held out, so no seed and no parameter moves it to the other side of the split.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog

from mappa_core import ConfigError, Split, Task, TaskError
from mappa_reasoning_gym.library import shared_library
from mappa_reasoning_gym.options import ReasoningGymOptions

HELD_OUT_ONE_IN = 10
"""One question in this many is held out."""
DRAWS_PER_TASK = 2 * HELD_OUT_ONE_IN
"""Questions that are drawn at most for each task that is asked for."""
_DRAWN_AT_ONCE = 64
_DRAWN_BY = ("dataset", "config", "index")

log = structlog.get_logger()


class ReasoningGymTasks:
    """Implements TaskSource and AnswerGrader."""

    def __init__(self, options: ReasoningGymOptions) -> None:
        self._options = options
        self._size = DRAWS_PER_TASK * max(1, options.train + options.eval)
        self._config = json.dumps({**options.config, "seed": options.seed, "size": self._size})
        self._library = shared_library()

    def load(self, split: Split) -> Sequence[Task]:
        """Raises ConfigError if there is no such data set, or too few questions in it, ToolError if its process does
        not start."""
        wanted = self._options.eval if split == "eval" else self._options.train
        chosen: dict[str, Task] = {}
        for task in self._draw(split) if wanted else ():
            chosen.setdefault(task.id, task)
            if len(chosen) == wanted:
                break
        if len(chosen) < wanted:
            raise ConfigError(
                f"{split}: {self._options.dataset} gave {len(chosen)} different questions in {self._size} draws, not "
                f"{wanted}; ask for fewer, or for other ones with tasks.options.config"
            )
        return tuple(chosen.values())

    def _draw(self, split: Split) -> Iterator[Task]:
        for start in range(0, self._size, _DRAWN_AT_ONCE):
            stop = min(start + _DRAWN_AT_ONCE, self._size)
            asked = {"dataset": self._options.dataset, "config": self._config, "start": start, "stop": stop}
            for index, entry in enumerate(self._library.ask("draw", **asked)["entries"], start=start):
                if is_held_out(entry["question"]) == (split == "eval"):
                    yield self._task(entry, index)

    def _task(self, entry: Mapping[str, Any], index: int) -> Task:
        return Task(
            id=f"{self._options.dataset}-{fingerprint(entry['question']):016x}",
            prompt=entry["question"] + self._options.suffix,
            reference=entry["answer"],
            stratum=entry["difficulty"],
            meta={"dataset": self._options.dataset, "config": self._config, "index": index},
        )

    async def grade_answer(self, answer: str, task: Task) -> float:
        """Grade an answer with the library's grader: 1 for full marks, else 0, or the share with `partial`.

        Raises:
            TaskError: the task does not say how it was drawn, or the library draws another one today.
            ToolError: the process of the library is lost.
        """
        if not task.meta.keys() >= set(_DRAWN_BY):
            raise TaskError(f"the task {task.id!r} does not say how reasoning-gym drew it: {', '.join(_DRAWN_BY)}")
        drawn_by = {name: task.meta[name] for name in _DRAWN_BY}
        reply = await asyncio.to_thread(self._library.ask, "score", **drawn_by, answer=answer)
        if not task.prompt.startswith(reply["question"]):
            raise TaskError(f"reasoning-gym draws another question for {task.id!r} today: is it another version?")
        if reply["unreadable"]:
            log.info("grading.unreadable", task=task.id, reason=reply["unreadable"])
        score = float(reply["score"])
        # Full marks that are a sum of parts may miss 1 by rounding.
        return min(1.0, max(0.0, score)) if self._options.partial else float(score > 1.0 - 1e-9)


def fingerprint(question: str) -> int:
    """Hash a question to 64 bits, the same on every machine."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:8])


def is_held_out(question: str) -> bool:
    """Whether a question is never trained on."""
    return fingerprint(question) % HELD_OUT_ONE_IN == 0
