"""Asks a provider's model for a better prompt of one agent, and refuses what may not be tried."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mappa.runs import RunFolder
from mappa.sessions import Ledger
from mappa_core import GuardStop, Message, ReplayError, Role, Sampling, Usage
from mappa_core.coach import fence_lines, new_nonce, prefix_lines, quote_name
from mappa_core.transport import CallError
from mappa_gepa.feedback import ActionFeedback
from mappa_gepa.options import ImproveOptions
from mappa_gepa.refusals import LeakCheck, Refusal, max_length, refuse, template_tags
from mappa_gepa.rollouts import Prompts

if TYPE_CHECKING:
    from jinja2 import Template

PROPOSAL_EVENT = "proposal"
"""A proposal: its number and agent, the prompt that it was to replace, the new one, why it was refused, its usage, and
the round of a training that it is of; None in a search."""
_HALF = re.compile("[\ud800-\udfff]")
_BLOCK = re.compile(r"^`{6}\w*[ \t]*\n(.*?)\n`{6}[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A reply of the proposer: the text of the new prompt, None if there is none, and why it is refused, if it is."""

    number: int
    agent: str
    current: str
    text: str | None
    refused: Refusal | None
    usage: Usage | None = None


class Proposer:
    """Asks `policy`, a policy behind an API, for prompts. Proposals that an earlier process recorded are taken in their
    order and not asked for again; ReplayError if one is for another agent or prompt."""

    def __init__(
        self,
        policy: Any,
        folder: RunFolder,
        *,
        options: ImproveOptions,
        roles: Mapping[str, Role],
        originals: Mapping[str, str],
        leaks: LeakCheck,
        is_known: Callable[[Prompts], bool],
        ledger: Ledger,
        seed: int,
        resume: str,
        round: int | None = None,  # noqa: A002 - as in GEPA
    ) -> None:
        self.proposals: list[Proposal] = []
        self._policy = policy
        self._folder = folder
        self._options = options
        self._roles = roles
        self._originals = originals
        self._leaks = leaks
        self._is_known = is_known
        self._ledger = ledger
        self._seed = seed
        self._resume = resume
        self._round = round
        bodies = (event.body for event in folder.store.events(PROPOSAL_EVENT))
        self._recorded = [body for body in bodies if body.get("round") == round]

    @property
    def refusals(self) -> Mapping[Refusal, int]:
        """Number of refused proposals by reason."""
        return Counter(one.refused for one in self.proposals if one.refused is not None)

    async def propose(self, agent: str, candidate: Prompts, feedback: Sequence[ActionFeedback]) -> str | None:
        """Return a new prompt of `agent` in place of that of `candidate`, None if it is refused. Raises GuardStop if
        the provider fails or the spending cap is reached."""
        number = len(self.proposals)
        if number < len(self._recorded):
            proposal = self._repeat(number, agent, candidate[agent])
        else:
            proposal = await self._ask(number, agent, candidate, feedback)
        self.proposals.append(proposal)
        return None if proposal.refused else proposal.text

    def _repeat(self, number: int, agent: str, current: str) -> Proposal:
        body = self._recorded[number]
        if (body["agent"], body["current"]) != (agent, current):
            raise ReplayError(f"{self._folder.path}: proposal {number} is recorded for another agent or prompt")
        names = ("agent", "current", "text", "refused")
        return Proposal(number=number, **{name: body[name] for name in names})

    async def _ask(self, number: int, agent: str, candidate: Prompts, feedback: Sequence[ActionFeedback]) -> Proposal:
        current = candidate[agent]
        message = Message(role="user", content=self._question(agent, current, feedback))
        sampling = Sampling(max_tokens=self._options.max_tokens, seed=self._seed + number)
        try:
            with self._ledger.enforce_cap():
                completion = await self._policy.sample(self._policy.render([message]), sampling)
        except CallError as error:
            raise GuardStop(
                f"no proposal from {self._options.proposer}: {error}. Once the cause is mended, go on: "
                f"{self._resume} {self._folder.path}"
            ) from error
        text = find_prompt(self._policy.reply(completion).content)
        refused = self._refuse(text, agent, candidate)
        proposal = Proposal(
            number=number, agent=agent, current=current, text=text, refused=refused, usage=completion.usage
        )
        self._folder.store.record_event(
            PROPOSAL_EVENT, round=self._round, number=number, agent=agent, current=current, text=text,
            refused=refused, usage=completion.usage,
        )  # fmt: skip
        return proposal

    def _refuse(self, text: str | None, agent: str, candidate: Prompts) -> Refusal | None:
        if text is None:
            return "unreadable"
        if self._is_known({**candidate, agent: text}) and text != candidate[agent]:
            return "tried"
        growth = self._options.max_growth
        return refuse(text, candidate[agent], self._originals[agent], self._leaks, max_growth=growth)

    def _question(self, agent: str, current: str, feedback: Sequence[ActionFeedback]) -> str:
        nonce = new_nonce()

        def fence(text: str) -> str:
            return fence_lines(prefix_lines(text), nonce) if text else ""

        shown = [
            {name: fence(getattr(one, name)) for name in ("input", "action", "results", "verdict")} for one in feedback
        ]
        original = self._originals[agent]
        return _template().render(
            agent=quote_name(agent),
            brief=self._roles[agent].brief,
            prompt=fence(current),
            feedback=shown,
            max_characters=max_length(original, self._options.max_growth),
            tags=" ".join(f"`{tag}`" for tag in template_tags(original)),
        )


def find_prompt(reply: str) -> str | None:
    """Return the one block of a proposer's reply, None if there is not exactly one, or it is empty or holds half a
    character, which no file can."""
    blocks = _BLOCK.findall(reply)
    text = blocks[0].strip() if len(blocks) == 1 else ""
    return text if text and not _HALF.search(text) else None


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    return environment.from_string(files("mappa_gepa").joinpath("prompts/propose.md").read_text(encoding="utf-8"))
