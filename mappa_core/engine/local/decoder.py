"""The running batch of one policy: requests join, take one token a step, and leave."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from mappa_core.engine.learning.layout import pad, padded
from mappa_core.engine.local.attention import SlotCache
from mappa_core.engine.local.drawing import Ways, draw, uniforms
from mappa_core.engine.local.models import decode_step
from mappa_core.engine.local.policy import Policy
from mappa_core.records import Completion, Int32, Sampling, VersionSpan


@dataclass(slots=True, eq=False)
class Request:
    """One action to be sampled, and the caller who waits for it."""

    prompt: Int32
    sampling: Sampling
    answer: asyncio.Future[Completion]
    begun: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    points: list[float] = field(default_factory=list)


Wave = list[Request]
"""Requests that were submitted together, in order."""


class Decoder:
    """Decodes whatever requests wait, up to `max_batch` together. Used by one thread, except for `waves`.

    `apart`: a wave is decoded to its end before the next is looked at, so that a batch hangs on its wave alone.
    """

    def __init__(self, policy: Policy, *, max_batch: int, prefill_tokens: int, apart: bool) -> None:
        self.version = 0
        self.waves: deque[Wave] = deque()
        self._policy = policy
        self._model = policy.model
        self._head = policy.model.get_output_embeddings()
        self._source = policy.source
        self._max_batch = max_batch
        self._prefill_tokens = prefill_tokens
        self._apart = apart
        self._waiting: deque[Request] = deque()
        self._clear()

    def _clear(self) -> None:
        """Hold no rows and no memory for them."""
        self._rows: list[Request] = []
        self._lengths: list[int] = []  # tokens of each row, the newest included, which is not yet in the cache
        self._cache = SlotCache(self._source.layers)
        self._newest = self._positions = torch.empty(0, dtype=torch.int64, device=self._model.device)
        self._ways = Ways.of([], self._model.device)

    @property
    def active(self) -> bool:
        """Whether rows are being decoded."""
        return bool(self._rows)

    @property
    def pending(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self._rows or self._waiting or self.waves)

    def abandon(self) -> list[Request]:
        """Forget all requests, and say which."""
        while self.waves:
            self._waiting.extend(self.waves.popleft())
        forgotten = [*self._rows, *self._waiting]
        self._waiting.clear()
        self._clear()
        return forgotten

    @torch.inference_mode()
    def step(self, *, admit: bool) -> list[tuple[Request, Completion]]:
        """One token for every row, after new rows have joined if `admit`; the requests that this finished."""
        with self._policy.active():
            return self._step(admit)

    def _step(self, admit: bool) -> list[tuple[Request, Completion]]:
        finished: list[tuple[Request, Completion]] = []
        if admit:
            finished += self._admit()
        if self._rows:
            hidden = decode_step(self._model, self._cache, self._newest, self._positions, max(self._lengths))
            self._newest = self._take(self._rows, hidden, self._ways)
            self._positions = self._positions + 1
            self._lengths = [length + 1 for length in self._lengths]
            finished += self._dismiss()
        if not self._rows:
            self._clear()
        return finished

    def _admit(self) -> list[tuple[Request, Completion]]:
        while self.waves and not (self._apart and (self._rows or self._waiting)):
            self._waiting.extend(self.waves.popleft())
        first = len(self._rows)
        while self._waiting and len(self._rows) < self._max_batch:
            request = self._waiting.popleft()
            if not request.answer.cancelled():
                request.points = uniforms(request.sampling).tolist()
                self._rows.append(request)
        if len(self._rows) == first:
            return []
        self._prefill(first)
        return self._dismiss()

    def _prefill(self, first: int) -> None:
        """Take the prompts of the rows from `first` on into the cache, equal ones once, and draw their first tokens."""
        device, joining = self._model.device, self._rows[first:]
        users: dict[bytes, list[int]] = {}
        for index, request in enumerate(joining):
            users.setdefault(request.prompt.tobytes(), []).append(index)
        groups = list(users.values())
        prompts = [joining[group[0]].prompt for group in groups]
        hidden = self._head.weight.new_empty((len(joining), self._head.weight.shape[1]))
        for batch in padded([len(prompt) for prompt in prompts], self._prefill_tokens):
            prefilled = DynamicCache(config=self._model.config)
            ids = pad([prompts[one] for one in batch], device)
            states = self._model.base_model(input_ids=ids, past_key_values=prefilled, use_cache=True).last_hidden_state
            self._cache.reserve(first + len(joining), ids.shape[1] + 1)
            members = [(row, index) for row, one in enumerate(batch) for index in groups[one]]
            rows, indices = torch.tensor(members, device=device).T
            self._cache.fill(first + indices, prefilled, rows)
            last = torch.tensor([len(joining[index].prompt) - 1 for _, index in members], device=device)
            hidden[indices] = states[rows, last]
        newest = self._take(joining, hidden, Ways.of([one.sampling for one in joining], device))
        self._newest = torch.cat([self._newest, newest])
        self._lengths += [len(request.prompt) + 1 for request in joining]
        self._compose()

    def _take(self, rows: list[Request], hidden: Tensor, ways: Ways) -> Tensor:
        """Draw one token for each row; (n,) on the device."""
        points = [request.points[len(request.tokens)] for request in rows] if ways.draw else []
        tokens, logprobs = draw(self._head(hidden), ways, points)
        for request, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)
        return tokens

    def _dismiss(self) -> list[tuple[Request, Completion]]:
        """Let the rows go that are done; the last row moves into the slot of each."""
        stops = self._source.stops
        done = [
            slot
            for slot, request in enumerate(self._rows)
            if request.tokens[-1] in stops
            or len(request.tokens) == request.sampling.max_tokens
            or request.answer.cancelled()
        ]
        if done:
            leaving = [self._rows[slot] for slot in done]
            order = list(range(len(self._rows)))
            self._cache.width = max(self._lengths)
            for slot in reversed(done):
                last = len(order) - 1
                if slot != last:
                    self._cache.move(last, slot)
                    order[slot] = order[last]
                order.pop()
            self._rows = [self._rows[slot] for slot in order]
            self._lengths = [self._lengths[slot] for slot in order]
            self._newest = self._newest[torch.tensor(order, dtype=torch.int64, device=self._newest.device)]
            self._compose()
        else:
            leaving = []
        if self._rows:
            self._cache.reserve(len(self._rows), max(self._lengths))
        return [(request, self._completion(request)) for request in leaving if not request.answer.cancelled()]

    def _compose(self) -> None:
        """What hangs on which rows there are."""
        device = self._model.device
        self._positions = torch.tensor(self._lengths, dtype=torch.int64, device=device) - 1
        self._ways = Ways.of([request.sampling for request in self._rows], device)

    def _completion(self, request: Request) -> Completion:
        stopped = request.tokens[-1] in self._source.stops
        return Completion(
            text=self._source.chat.decode(request.tokens[:-1] if stopped else request.tokens),
            prompt_tokens=request.prompt,
            tokens=np.array(request.tokens, dtype=np.int32),
            logprobs=np.array(request.logprobs, dtype=np.float32),
            finish="stop" if stopped else "length",
            temperature=request.sampling.temperature,
            versions=(VersionSpan(version=self.version, start=0, end=len(request.tokens)),),
            seconds=time.perf_counter() - request.begun,
        )
