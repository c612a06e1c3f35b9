"""Engine whose policies are tables of logits, in numpy: a row per prompt and preceding token, a column per letter.

Prompts share rows by their checksum. The gradient of any loss that numpy computes per token is exact: the derivative
with respect to a log-probability by a complex step, and that of the log-probability in closed form.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mappa_core import Message, ToolSpec
from mappa_core.engine import (
    Advantages,
    Completion,
    Engine,
    Experience,
    Loss,
    LossRows,
    PolicySpec,
    PromptTooLong,
    Receipt,
    Sampling,
    TrainSection,
    VersionSpan,
)

LETTERS = "\n abcdefghijklmnopqrstuvwxyz0123456789-:?"
STOP, UNKNOWN = 0, len(LETTERS) - 1
PROMPTS, WINDOW = 997, 4096
STEP = 1e-30


class ReinforceLoss:
    """The policy gradient with importance ratios: minus advantage times new over old probability."""

    def __call__(self, new_logprobs: Any, rows: LossRows, advantages: Any) -> tuple[Any, Mapping[str, Any]]:
        return -advantages * np.exp(new_logprobs - rows.old_logprobs), {}


class Table:
    """The logits of a policy, its version, and the sampler of it."""

    window = WINDOW

    def __init__(self) -> None:
        self.logits = np.zeros((PROMPTS, len(LETTERS), len(LETTERS)))
        self.version = 0

    def logprobs(self, prompt: Any, previous: Any, temperature: float) -> Any:
        """Log-probabilities of all letters after each of the `previous` ones."""
        scaled = self.logits[zlib.crc32(prompt.tobytes()) % PROMPTS, previous] / (temperature or 1.0)
        return scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Any:
        text = "".join(f"{message.role}: {message.content}\n" for message in messages).lower()
        return np.array([max(LETTERS.find(letter), -1) % len(LETTERS) for letter in text], dtype=np.int32)

    async def sample(self, prompt: Any, sampling: Sampling) -> Completion:
        if len(prompt) + sampling.max_tokens > WINDOW:
            raise PromptTooLong(f"{len(prompt)} letters and {sampling.max_tokens} more; a table reads {WINDOW}")
        random, tokens, chosen = np.random.default_rng(sampling.seed), [STOP], []
        text, ended_at = "", None
        while len(chosen) < sampling.max_tokens and ended_at is None and (not chosen or tokens[-1] != STOP):
            logprobs = self.logprobs(prompt, tokens[-1], sampling.temperature)
            noise = random.gumbel(size=len(LETTERS)) if sampling.temperature else 0.0
            tokens.append(int(np.argmax(logprobs + noise)))
            chosen.append(logprobs[tokens[-1]])
            text += LETTERS[tokens[-1]]
            ended_at = next((stop for stop in sampling.stop if stop in text), None)
        return Completion(
            text=text.rstrip("\n") if ended_at is None else text.partition(ended_at)[0],
            tokens=np.array(tokens[1:], dtype=np.int32),
            logprobs=np.array(chosen, dtype=np.float32),
            prompt_tokens=prompt,
            finish="stop" if tokens[-1] == STOP or ended_at is not None else "length",
            stop_text=ended_at,
            versions=(VersionSpan(version=self.version, start=0, end=len(chosen)),),
        )

    def reply(self, completion: Completion) -> Message:
        return Message(role="assistant", content=completion.text)

    def encode(self, text: str) -> Any:
        tokens = [LETTERS.find(letter) for letter in f"{text}\n"]
        return None if -1 in tokens else np.array(tokens, dtype=np.int32)


class TableEngine(Engine):
    """Holds a table per policy; sampler and learner share it."""

    deterministic = True

    async def open(self, policies: Sequence[PolicySpec], train: TrainSection | None, *, seed: int) -> None:
        self.tables, self.train = {spec.name: Table() for spec in policies}, train

    def sampler(self, policy: str) -> Table:
        return self.tables[policy]

    def _rows(self, experience: Experience) -> Any:
        """Yield table, tokens, preceding tokens, log-probabilities of all letters, and positions of every row."""
        for row, (start, end) in enumerate(zip(experience.offsets, experience.offsets[1:], strict=False)):
            table = self.tables[experience.policies[experience.policy[row]]]
            prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
            tokens = experience.tokens[start:end]
            previous = np.concatenate([[STOP], tokens[:-1]])
            index = zlib.crc32(prompt.tobytes()) % PROMPTS
            yield row, table, index, previous, tokens, table.logprobs(prompt, previous, experience.temperature[row])

    async def score(self, experience: Experience, *, reference: bool = True) -> Experience:
        found = [logs[np.arange(len(tokens)), tokens] for *_, tokens, logs in self._rows(experience)]
        uniform = np.full(len(experience.tokens), -np.log(len(LETTERS)), dtype=np.float32)
        return replace(experience, old_logprobs=np.concatenate(found).astype(np.float32), ref_logprobs=uniform)

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        old, ref, weight = experience.old_logprobs, experience.ref_logprobs, experience.token_weight
        sampled, row = experience.logprobs, experience.row_of_token
        rows = LossRows(logprobs=sampled, old_logprobs=old, ref_logprobs=ref, weight=weight, row=row)
        slopes = loss(old.astype(complex) + 1j * STEP, rows, advantages.advantages)[0].imag / STEP * weight
        changes = {id(table): (table, np.zeros_like(table.logits)) for table in self.tables.values()}
        for number, table, index, previous, tokens, logs in self._rows(experience):
            slope = slopes[experience.offsets[number] : experience.offsets[number + 1], None]
            gradient = slope * (np.eye(len(LETTERS))[tokens] - np.exp(logs)) / (experience.temperature[number] or 1.0)
            np.add.at(changes[id(table)][1][index], previous, gradient)
        for table, change in changes.values():
            table.logits -= self.train.learning_rate * change / max(weight.sum(), 1.0)
        return {policy: {"loss": 0.0} for policy in experience.policies}

    async def publish(self) -> Mapping[str, Receipt]:
        for table in self.tables.values():
            table.version += 1
        digests = {name: hashlib.sha256(table.logits.tobytes()).hexdigest() for name, table in self.tables.items()}
        return {name: Receipt(version=self.tables[name].version, checksum=digest) for name, digest in digests.items()}

    async def save(self, folder: Path, *, dtype: str = "float32") -> None:
        for name, table in self.tables.items():
            (folder / name).mkdir(parents=True)
            np.save(folder / name / "logits.npy", table.logits)
            (folder / name / "version.json").write_text(json.dumps(table.version))

    async def load(self, folder: Path) -> None:
        for name, table in self.tables.items():
            table.logits = np.load(folder / name / "logits.npy")
            table.version = json.loads((folder / name / "version.json").read_text())

    async def close(self) -> None:
        self.tables = {}
