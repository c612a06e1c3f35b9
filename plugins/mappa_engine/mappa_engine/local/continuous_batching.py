"""Continuous batching for one policy: requests join, decode one token per step, and leave."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from mappa_core.engine import Completion, Sampling, VersionSpan
from mappa_engine.arrays import Int32
from mappa_engine.learning.batching import IndexGroups, group_padded, pad_right
from mappa_engine.learning.shared_prefixes import shared_prefix, split_by_prefix
from mappa_engine.local.kv_cache import SlotCache
from mappa_engine.local.models import decode_step
from mappa_engine.local.policy import Policy
from mappa_engine.local.sampling import SamplingTensors, draw_uniforms, is_cut, sample_tokens
from mappa_engine.model_shape import is_large
from mappa_engine.stop_texts import find_stop, has_stop


@dataclass(slots=True, eq=False)
class DecodeRequest:
    """A request to sample one action, and the future of its completion."""

    prompt: Int32
    sampling: Sampling
    future: asyncio.Future[Completion]
    started_at: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    masks: list[Int32] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)

    @property
    def max_width(self) -> int:
        """Columns of the cache that it may come to fill."""
        return len(self.prompt) + self.sampling.max_tokens


DecodeWave = list[DecodeRequest]
"""Requests that were submitted together, in order."""


class Decoder:
    """Decodes waiting requests, up to `max_batch` together and as many as `kv_tokens` have room for, all as long as the
    longest may become. Used by one thread, except for `waves`.

    What prompts of a prefill begin with alike is computed once for a large model: its numbers are not held to the bit.
    `isolate_waves`: decode a wave to its end before admitting the next, so that a batch depends on its wave alone.
    """

    def __init__(
        self, policy: Policy, *, max_batch: int, kv_tokens: int, prefill_tokens: int, isolate_waves: bool
    ) -> None:
        self.version = 0
        self.waves: deque[DecodeWave] = deque()
        self._policy = policy
        self._model = policy.model
        self._head = policy.model.get_output_embeddings()
        self._base = policy.base
        self._max_batch = max_batch
        self._kv_tokens = kv_tokens
        self._prefill_tokens = prefill_tokens
        self._isolate_waves = isolate_waves
        self._shares_prefixes = is_large(policy.base.weights)
        self._waiting: deque[DecodeRequest] = deque()
        self._clear()

    def _clear(self) -> None:
        """Drop all rows and free their memory."""
        self._rows: list[DecodeRequest] = []
        self._lengths: list[int] = []  # tokens per row, including the newest, which is not yet in the cache
        self._cache = SlotCache(self._base.layers, max_tokens=self._kv_tokens)
        self._newest = self._positions = torch.empty(0, dtype=torch.int64, device=self._model.device)
        self._sampling_tensors = SamplingTensors.of([], self._model.device)

    @property
    def active(self) -> bool:
        """Whether rows are being decoded."""
        return bool(self._rows)

    @property
    def pending(self) -> bool:
        """Whether requests are being decoded or wait."""
        return bool(self._rows or self._waiting or self.waves)

    def abort_all(self) -> list[DecodeRequest]:
        """Drop all requests and return them."""
        while self.waves:
            self._waiting.extend(self.waves.popleft())
        forgotten = [*self._rows, *self._waiting]
        self._waiting.clear()
        self._clear()
        return forgotten

    @torch.inference_mode()
    def step(self, *, admit: bool) -> list[tuple[DecodeRequest, Completion]]:
        """Admit waiting requests if `admit`, decode one token per row, and return the finished requests."""
        with self._policy.active():
            return self._step(admit)

    def _step(self, admit: bool) -> list[tuple[DecodeRequest, Completion]]:
        finished: list[tuple[DecodeRequest, Completion]] = []
        if admit:
            finished += self._admit()
        if self._rows:
            hidden = decode_step(self._model, self._cache, self._newest, self._positions, max(self._lengths))
            self._newest = self._sample_next(self._rows, hidden, self._sampling_tensors)
            self._positions = self._positions + 1
            self._lengths = [length + 1 for length in self._lengths]
            finished += self._remove_finished()
        if not self._rows:
            self._clear()
        return finished

    def _admit(self) -> list[tuple[DecodeRequest, Completion]]:
        while self.waves and not (self._isolate_waves and (self._rows or self._waiting)):
            self._waiting.extend(self.waves.popleft())
        first = len(self._rows)
        width = max((request.max_width for request in self._rows), default=0)
        while self._waiting and len(self._rows) < self._max_batch:
            width = max(width, self._waiting[0].max_width)
            # The cache is a rectangle as wide as its longest row, and what a request may come to is reserved when it is
            # admitted: none ever has to be put back. One alone is always admitted; `sample` refused what is too long.
            if self._rows and (len(self._rows) + 1) * width > self._kv_tokens:
                break
            request = self._waiting.popleft()
            if not request.future.cancelled():
                request.uniforms = draw_uniforms(request.sampling).tolist()
                self._rows.append(request)
        if len(self._rows) == first:
            return []
        self._prefill(first)
        return self._remove_finished()

    def _prefill(self, first: int) -> None:
        """Prefill the prompts of the rows from `first` on, equal prompts once, and sample their first tokens."""
        device, joining = self._model.device, self._rows[first:]
        users: dict[bytes, list[int]] = {}
        for index, request in enumerate(joining):
            users.setdefault(request.prompt.tobytes(), []).append(index)
        groups = list(users.values())
        prompts = [joining[group[0]].prompt for group in groups]
        self._cache.reserve(len(self._rows), max(*self._lengths, *(len(prompt) + 1 for prompt in prompts), 0))
        hidden = self._head.weight.new_empty((len(joining), self._head.weight.shape[1]))
        for batch in self._group_prompts(prompts):
            prefilled = DynamicCache(config=self._model.config)
            together = [prompts[group] for group in batch]
            ids = pad_right(together, device)
            # The last token of a prompt is computed for each, as the first one of the action is sampled after it.
            prefix = shared_prefix(together, min(map(len, together)) - 1) if self._shares_prefixes else 0
            if prefix:
                self._model.base_model(input_ids=ids[:1, :prefix], past_key_values=prefilled, use_cache=True)
                prefilled.batch_repeat_interleave(len(together))
            states = self._model.base_model(
                input_ids=ids[:, prefix:], past_key_values=prefilled, use_cache=True
            ).last_hidden_state
            members = [(row, index) for row, group in enumerate(batch) for index in groups[group]]
            rows, indices = torch.tensor(members, device=device).T
            self._cache.fill(first + indices, prefilled, rows)
            last = torch.tensor([len(joining[index].prompt) - 1 - prefix for _, index in members], device=device)
            hidden[indices] = states[rows, last]
        newest = self._sample_next(
            joining, hidden, SamplingTensors.of([request.sampling for request in joining], device)
        )
        self._newest = torch.cat([self._newest, newest])
        self._lengths += [len(request.prompt) + 1 for request in joining]
        self._rebuild_batch_state()

    def _group_prompts(self, prompts: Sequence[Int32]) -> IndexGroups:
        """Group prompts into passes of a prefill."""
        batches = group_padded([len(prompt) for prompt in prompts], self._prefill_tokens)
        if not self._shares_prefixes:
            return batches
        limits = [len(prompt) - 1 for prompt in prompts]
        return [
            [batch[place] for place in group]
            for batch in batches
            for group in split_by_prefix([prompts[index] for index in batch], [limits[index] for index in batch])
        ]

    def _sample_next(self, rows: list[DecodeRequest], hidden: Tensor, sampling_tensors: SamplingTensors) -> Tensor:
        """Sample one token for each row; (n,) on the device."""
        uniforms = [request.uniforms[len(request.tokens)] for request in rows] if sampling_tensors.any_random else []
        tokens, logprobs, masks = sample_tokens(self._head(hidden), sampling_tensors, uniforms)
        for request, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)
        for request, mask in zip(rows, masks or (), strict=False):
            request.masks.append(mask)
        return tokens

    def _remove_finished(self) -> list[tuple[DecodeRequest, Completion]]:
        """Remove finished rows; the last row moves into each freed slot."""
        stops = self._base.stops
        done = [
            slot
            for slot, request in enumerate(self._rows)
            if request.tokens[-1] in stops
            or len(request.tokens) == request.sampling.max_tokens
            or has_stop(self._base.chat.decode, request.tokens, request.sampling.stop)
            or request.future.cancelled()
        ]
        if done:
            leaving = [self._rows[slot] for slot in done]
            order = list(range(len(self._rows)))
            self._cache.width = max(self._lengths)
            # From the last slot down, so that the row which moves into a freed slot is never one that is leaving.
            for slot in reversed(done):
                last = len(order) - 1
                if slot != last:
                    self._cache.move(last, slot)
                    order[slot] = order[last]
                order.pop()
            self._rows = [self._rows[slot] for slot in order]
            self._lengths = [self._lengths[slot] for slot in order]
            self._newest = self._newest[torch.tensor(order, dtype=torch.int64, device=self._newest.device)]
            self._rebuild_batch_state()
        else:
            leaving = []
        if self._rows:
            self._cache.reserve(len(self._rows), max(self._lengths))
        return [(request, self._completion(request)) for request in leaving if not request.future.cancelled()]

    def _rebuild_batch_state(self) -> None:
        """Rebuild the state that depends on the active rows."""
        device = self._model.device
        self._positions = torch.tensor(self._lengths, dtype=torch.int64, device=device) - 1
        self._sampling_tensors = SamplingTensors.of([request.sampling for request in self._rows], device)

    def _completion(self, request: DecodeRequest) -> Completion:
        stopped, cut = request.tokens[-1] in self._base.stops, is_cut(request.sampling)
        written = request.tokens[:-1] if stopped else request.tokens
        match = find_stop(self._base.chat.decode, written, request.sampling.stop)
        return Completion(
            text=self._base.chat.decode(written) if match is None else match.text,
            prompt_tokens=request.prompt,
            tokens=np.array(request.tokens, dtype=np.int32),
            logprobs=np.array(request.logprobs, dtype=np.float32),
            finish="stop" if stopped or match is not None else "length",
            temperature=request.sampling.temperature,
            mask_tokens=np.concatenate(request.masks) if cut else None,
            mask_sizes=np.array([len(mask) for mask in request.masks], dtype=np.int32) if cut else None,
            versions=(VersionSpan(version=self.version, start=0, end=len(request.tokens)),),
            seconds=time.perf_counter() - request.started_at,
            stop_text=None if match is None else match.stop_text,
        )
