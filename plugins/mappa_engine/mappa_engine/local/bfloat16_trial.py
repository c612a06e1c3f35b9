"""A trial of bfloat16 on the CPU: whether a model computes faster in it, and nearly the same."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mappa_core import Message
from mappa_engine.adapters import base_weights
from mappa_engine.chat import Chat

MAX_TIME = 0.9
"""Share of float32's time that bfloat16 may take: what it gains has to be more than its rounding is worth."""
MAX_GAP = 0.1
"""Nats by which log-probabilities of a text may differ in the mean. SmolLM2-135M rounds by 0.03; an operation that a
processor or library computes wrongly is off by far more."""
_TOKENS = 128
_FURTHER_PASSES = 2
"""In turn; the first passes also prepare kernels, and the fastest count."""
_TEXT = """Tom packs shells into boxes on three days of a week. On the first day he fills 7 boxes with 12 shells each,
on the second he fills 5 boxes with 9 shells each, and on the third he gives 40 shells away. How many has he got? On the
first day he packs 7 * 12 = 84 shells, and on the second 5 * 9 = 45 shells. Together these are 84 + 45 = 129. He gives
40 of them away, so 129 - 40 = 89 are left. To check the answer, count backwards: 89 + 40 = 129, and 129 - 45 = 84.
Those are the 7 boxes of 12 that he began with. The answer is 89 shells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bfloat16Trial:
    """`time` is a share of float32's; `gap`, in nats, is the mean difference of log-probabilities."""

    time: float
    gap: float

    @property
    def passed(self) -> bool:
        """Whether bfloat16 is to be used."""
        return self.time <= MAX_TIME and self.gap <= MAX_GAP

    def __str__(self) -> str:
        return f"{self.time:.2f} of the time of float32, log-probabilities {self.gap:.3f} nats apart in the mean"


def try_bfloat16(model: Any, chat: Chat, window: int) -> Bfloat16Trial:
    """Compute a text in float32 and in bfloat16, forwards and backwards. The model is float32, and stays as it is."""
    ids = torch.from_numpy(chat.render([Message(role="user", content=_TEXT)])).long()[None, : min(_TOKENS, window)]
    rounded = copy.deepcopy(model)
    # Not `to`, which would round rotary frequencies as well; loading a model in bfloat16 leaves them alone.
    for weight in base_weights(rounded.named_parameters()).values():
        weight.data = weight.data.bfloat16()
    threads = torch.get_num_threads()
    # Several threads wait for the slowest, which may have to wait for another process: that would be counted.
    torch.set_num_threads(1)
    try:
        (exact_time, exact), (rounded_time, found) = _compute(model, ids), _compute(rounded, ids)
        for _ in range(_FURTHER_PASSES):
            exact_time = min(exact_time, _compute(model, ids)[0])
            rounded_time = min(rounded_time, _compute(rounded, ids)[0])
    finally:
        torch.set_num_threads(threads)
    return Bfloat16Trial(time=rounded_time / exact_time, gap=(found - exact).abs().mean().item())


def _compute(model: Any, ids: Tensor) -> tuple[float, Tensor]:
    """Return the seconds of a pass, and the log-probabilities of the tokens after the first."""
    # Time of this thread, not of the clock: other processes may be busy as well.
    started = time.thread_time()
    inputs = model.get_input_embeddings()(ids).requires_grad_(True)
    logits = model(inputs_embeds=inputs, use_cache=False).logits[:, :-1].float()
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return time.thread_time() - started, logprobs.detach()
