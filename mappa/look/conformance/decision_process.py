"""Multi-agent decision processes, small enough to enumerate all their trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose

import numpy as np

from mappa.look.arrays import Float64

Tokens = tuple[int, ...]
Parameter = tuple[str, Tokens, int]
"""One logit: policy, context (the prompt and its action so far), and next token."""
MAX_BATCHES = 100_000
"""Largest number of batches that is enumerated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A possible action at a decision.

    `chances` are the conditional probabilities of its tokens. `points` are its verdict's, which is missing with
    probability `missing`. `then` is the next decision, or the outcome of the trajectory if it ends here. `truncated`:
    it ends at its token limit, which must make no difference.
    """

    tokens: Tokens
    chances: tuple[float, ...]
    points: float
    then: Decision | float
    missing: float = 0.0
    truncated: bool = False

    @property
    def chance(self) -> float:
        """The probability of the whole action."""
        return float(np.prod(self.chances))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An agent's turn: the prompt of its policy, and every action it can take."""

    agent: str
    prompt: Tokens
    actions: tuple[Action, ...]

    def contexts(self, action: Action) -> Iterator[tuple[Tokens, int, float]]:
        """Yield for each token of an action: its context, the token, its probability."""
        for place, (token, chance) in enumerate(zip(action.tokens, action.chances, strict=True)):
            yield self.prompt + action.tokens[:place], token, chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """An occurrence of a decision in a task: its probability `reach`, and the `turn` of its agent."""

    task: int
    turn: int
    reach: float
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleTrajectory:
    """One possible trajectory of a task: its actions, whether each got its verdict, and the outcome."""

    chance: float
    choices: tuple[tuple[Decision, Action], ...]
    judged: tuple[bool, ...]
    outcome: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionProcess:
    """Tasks, each sampled `samples` times, for agents whose policies are tables of logits.

    Probabilities and points that are dyadic fractions are exact in the float32 columns of an Experience, so that an
    unbiased gradient is off by 1e-15 instead of 1e-7.

    Raises:
        ValueError: probabilities after some prompt do not add up to 1, or one policy has two tables for it.
    """

    name: str
    tasks: tuple[Decision, ...]
    policies: Mapping[str, str]
    """Agent -> policy; agents may share one."""
    samples: int = 2
    tables: Mapping[tuple[str, Tokens], Mapping[int, float]] = field(init=False)
    """Each policy as a table: (policy, tokens so far) -> next token -> its probability."""

    def __post_init__(self) -> None:
        tables: dict[tuple[str, Tokens], dict[int, float]] = {}
        for visit in self.visits():
            policy = self.policies[visit.decision.agent]
            for context, table in _tables(visit.decision).items():
                if tables.setdefault((policy, context), table) != table:
                    raise ValueError(f"{self.name}: {policy} has two tables after the tokens {context}")
                if not isclose(sum(table.values()), 1.0):
                    raise ValueError(f"{self.name}: the chances of {policy} after {context} add up to no 1: {table}")
        object.__setattr__(self, "tables", tables)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The logits of all policies, (P,): the axis of every gradient."""
        return tuple((*key, token) for key, table in self.tables.items() for token in table)

    @property
    def trajectories(self) -> int:
        """Number of trajectories in a batch."""
        return len(self.tasks) * self.samples

    def visits(self) -> Iterator[Visit]:
        """Yield every decision that can occur, once per history that leads to it."""
        for task, root in enumerate(self.tasks):
            yield from _visits(task, root, 1.0, ())

    def scores(self, decision: Decision, action: Action) -> Float64:
        """Compute d log pi(token) / d logits per token of an action, (T, P): `1[token] - chances` in the token's
        table."""
        policy = self.policies[decision.agent]
        place = {parameter: index for index, parameter in enumerate(self.parameters)}
        rows = np.zeros((len(action.tokens), len(place)))
        for row, (context, token, _) in enumerate(decision.contexts(action)):
            for other, chance in self.tables[policy, context].items():
                rows[row, place[policy, context, other]] = float(other == token) - chance
        return rows


def possible_trajectories(root: Decision) -> tuple[PossibleTrajectory, ...]:
    """Enumerate all trajectories of a task, with every pattern of missing verdicts. Their probabilities add up to 1."""
    return tuple(_plays(root))


def _plays(node: Decision | float) -> Iterator[PossibleTrajectory]:
    if not isinstance(node, Decision):
        yield PossibleTrajectory(chance=1.0, choices=(), judged=(), outcome=node)
        return
    for action in node.actions:
        for rest in _plays(action.then):
            for judged, chance in ((True, 1.0 - action.missing), (False, action.missing)):
                if chance > 0.0:
                    yield PossibleTrajectory(
                        chance=action.chance * chance * rest.chance,
                        choices=((node, action), *rest.choices),
                        judged=(judged, *rest.judged),
                        outcome=rest.outcome,
                    )


def _visits(task: int, node: Decision | float, reach: float, before: tuple[str, ...]) -> Iterator[Visit]:
    if not isinstance(node, Decision):
        return
    yield Visit(task=task, turn=before.count(node.agent), reach=reach, decision=node)
    for action in node.actions:
        yield from _visits(task, action.then, reach * action.chance, (*before, node.agent))


def _tables(decision: Decision) -> dict[Tokens, dict[int, float]]:
    tables: dict[Tokens, dict[int, float]] = {}
    for action in decision.actions:
        for context, token, chance in decision.contexts(action):
            if tables.setdefault(context, {}).setdefault(token, chance) != chance:
                raise ValueError(f"{decision.agent}'s token {token} has two chances after {context}")
    return tables
