"""Two bugs of public code, made again to see what they cost; offered as a plugin that no package holds.

`load(modules={"bugs": bug_offers})` adds it to a registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mappa_core import Advantages, Engine, Estimator, Experience, Offer, hookimpl
from mappa_core.credit.estimators import ReinforcePlusPlus, ReinforcePlusPlusOptions
from mappa_core.credit.estimators.common import ActiveRows, scatter_to_tokens, whiten
from mappa_core.credit.ragged import lengths_to_offsets
from mappa_core.records import Int64
from mappa_engine.options import LocalOptions

if TYPE_CHECKING:
    from mappa_engine.local import LocalEngine


@dataclass
class WhitenedTwiceOptions(ReinforcePlusPlusOptions):
    """REINFORCE++ whose returns are whitened on every rank, and then once more over all of them."""

    ranks: int = 2
    """Learners that an iteration's trajectories are dealt to, siblings together, in the order of their tasks."""


class WhitenedTwice:
    """REINFORCE++ that whitens a policy's returns within each rank's share of trajectories before it whitens them over
    all. What differs between the shares is lost: a share that did better than the others is told that it did not."""

    def __init__(self, options: WhitenedTwiceOptions) -> None:
        self._ranks = options.ranks
        self._estimator = ReinforcePlusPlus(replace(options, normalize="none"))

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        returns = self._estimator(experience, {})[0].advantages
        rows = ActiveRows.from_experience(experience)
        rank = ranks_of(experience, self._ranks)
        once = returns.astype(np.float64)
        for number in range(self._ranks):
            own = ActiveRows.from_indices(experience, rows.index[rank[rows.index] == number])
            once[own.tokens] = whiten(experience, own, once[own.tokens], "policy")
        return scatter_to_tokens(experience, rows, whiten(experience, rows, once[rows.tokens], "policy")), state


def ranks_of(experience: Experience, ranks: int) -> Int64:
    """The rank of every row, (R,): tasks in their order, as many for each rank as whole numbers allow."""
    return np.asarray(experience.task.astype(np.int64) * ranks // max(len(experience.tasks), 1))


def with_wrong_prompts(experience: Experience) -> Experience:
    """The experience where each later action of an agent has for its prompt what the agent said before, and nothing
    else: the prompt that is looked up by the number of the action among what the agent saw."""
    columns = experience.agent, experience.trajectory, experience.turn
    named = list(zip(*(column.tolist() for column in columns), strict=True))
    row_of = {name: row for row, name in enumerate(named)}
    prompts = []
    for row, (agent, trajectory, turn) in enumerate(named):
        before = row_of.get((agent, trajectory, turn - 1))
        if before is None:
            prompts.append(experience.prompt_tokens[slice(*experience.prompt_offsets[row : row + 2])])
        else:
            prompts.append(experience.tokens[slice(*experience.offsets[before : before + 2])])
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    joined = np.concatenate([np.empty(0, np.int32), *prompts], dtype=np.int32)
    return replace(experience, prompt_tokens=joined, prompt_offsets=lengths_to_offsets(lengths))


def _wrong_prompt(options: LocalOptions) -> LocalEngine:
    from mappa_engine.local import LocalEngine

    class WrongPrompt(LocalEngine):
        """The engine `local`, which learns later actions of an agent under a prompt that it never saw. Sampling is as
        it was."""

        async def score(self, experience: Experience, *, reference: bool = True) -> Experience:
            return await super().score(with_wrong_prompts(experience))

    return WrongPrompt(options)


@hookimpl
def mappa_estimators() -> Iterable[Offer[Estimator]]:
    yield Offer("whitened_twice", WhitenedTwice, WhitenedTwiceOptions)


@hookimpl
def mappa_engines() -> Iterable[Offer[Engine]]:
    yield Offer("wrong_prompt", _wrong_prompt, LocalOptions)
