"""Two providers without a model: one follows the instructions in its prompt, the other edits prompts by feedback."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from mappa_core import ConfigError, Message, Usage
from mappa_core.transport import Reply, Request
from mappa_gepa.relay.instructions import INSTRUCTIONS, WORDS_MARK, find_instructions, follow

CHARACTERS_PER_TOKEN = 4
HOST = "this process"
_FENCED = re.compile(r"^<<<DATA \w+>>>\n(.*?)\n<<<END \w+>>>$", re.DOTALL | re.MULTILINE)
_MISSING = re.compile(r"It does not do what it should: (.*)")
_UNDUE = re.compile(r"It does what nobody asks of it: (.*)")


@dataclass
class FollowerOptions:
    slip: float = 0.05
    """Chance that an instruction is overlooked."""

    def check(self) -> None:
        """Raise ConfigError if `slip` is no probability."""
        if not 0.0 <= self.slip <= 1.0:
            raise ConfigError(f"slip: must be from 0 to 1, not {self.slip:g}")


class InstructionFollower:
    """Does with the words after the mark what the instructions before it say. The seed of a request decides which of
    them it overlooks."""

    model = "instruction-follower"
    host = HOST

    def __init__(self, options: FollowerOptions) -> None:
        self._slip = options.slip

    async def complete(self, request: Request) -> Reply:
        """Follow the last message."""
        prompt, _, words = request.messages[-1].content.rpartition(WORDS_MARK)
        heeded = [one for one in find_instructions(prompt) if Random(f"{request.seed}/{one}").random() >= self._slip]
        return build_reply(" ".join(follow(heeded, words.split())), self.model, request)

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Return None: it has no tokens."""
        return None

    async def close(self) -> None:
        """Release nothing."""


@dataclass
class EditorOptions:
    mode: Literal["edit", "answer", "idle"] = "edit"
    """`edit` by what feedback says; `answer`: also write an answer into the prompt, as a proposer must not; `idle`: add
    a sentence that no agent heeds, so that all candidates are equally good."""


class InstructionEditor:
    """Answers a request for a better prompt: it adds the instruction that feedback misses most, or takes out one that
    nobody asks for. Where feedback names none, it adds or takes out any, as the request's seed decides."""

    model = "instruction-editor"
    host = HOST

    def __init__(self, options: EditorOptions) -> None:
        self._mode = options.mode

    async def complete(self, request: Request) -> Reply:
        """Edit the first text of the request by the others."""
        prompt, *others = read_fenced(request)
        feedback = "\n".join(others)
        random = Random(f"{request.seed}")
        text = (
            f"{prompt}\nMind rule {random.randrange(10**6)}."
            if self._mode == "idle"
            else _edit(prompt, feedback, random)
        )
        if self._mode == "answer":
            words = feedback.rpartition(WORDS_MARK)[2].strip().splitlines()[0]
            text += f"\nThe answer to {words} is {_solve(words)}."
        return build_reply(f"``````\n{text}\n``````", self.model, request)

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Return None: it has no tokens."""
        return None

    async def close(self) -> None:
        """Release nothing."""


def _edit(prompt: str, feedback: str, random: Random) -> str:
    present = find_instructions(prompt)
    named = Counter(one for line in _MISSING.findall(feedback) for one in find_instructions(line))
    undue = Counter(one for line in _UNDUE.findall(feedback) for one in find_instructions(line))
    changes = [one for one, _ in (named + undue).most_common() if (one in present) == (one in undue)]
    if (named or undue) and not changes:
        return prompt
    change = changes[0] if changes else random.choice(tuple(INSTRUCTIONS))
    return prompt.replace(change, "").strip() if change in present else f"{prompt}\n{change}"


def _solve(words: str) -> str:
    from mappa_gepa.relay.team import DUTIES

    solved = words.split()
    for duties in DUTIES.values():
        solved = follow(duties, solved)
    return " ".join(solved)


def read_fenced(request: Request) -> list[str]:
    """The texts that stand in fences of a request for a prompt: the present prompt, then the feedback."""
    blocks = _FENCED.findall(request.messages[-1].content)
    return ["\n".join(line.removeprefix("| ") for line in block.splitlines()) for block in blocks]


def build_reply(text: str, model: str, request: Request) -> Reply:
    """A reply with `text`, whose tokens are counted by characters."""
    prompt = sum(len(message.content) for message in request.messages)
    usage = Usage(
        calls=1,
        prompt_tokens=prompt // CHARACTERS_PER_TOKEN,
        completion_tokens=len(text) // CHARACTERS_PER_TOKEN,
        cached_tokens=0,
    )
    return Reply(text=text, stop="end", model=model, raw=text, usage=usage)
