"""How far people agree on who failed a run and where: no coach can be held to more than that.

Cohen's kappa (1960) corrects the agreement on the agent for what chance alone would bring; of more than two labellers
it is Light's (1971), the mean over their pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np

from mappa.evaluation.statistics import share_interval
from mappa_core.records import Interval, Label

_MIXED = " and "


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPlay:
    """What people say of one play. `positions` are those of its actions by id; plays that share a `cluster` are no
    independent evidence."""

    labels: Sequence[Label]
    positions: Mapping[str, int]
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LabellerAgreement:
    """Agreement of the `labellers` on plays that at least two of them labelled. Shares (0-1) are means over `agents`
    plays whose guilty agent two named, and `steps` plays whose step two named, with 95 % intervals; None without any.
    `kappa` is of the agent; None where one of two labellers said the same of every play."""

    labellers: tuple[str, ...]
    plays: int
    agents: int
    same_agent: Interval | None
    kappa: float | None
    steps: int
    same_step: Interval | None
    near_step: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What one labeller says of a play; None: nothing."""

    agent: str | None
    positions: frozenset[int]


def measure_agreement(plays: Sequence[LabelledPlay]) -> LabellerAgreement | None:
    """Compare the labellers of guilt with each other; None where no play has labels of two."""
    answers = [_answers(play) for play in plays]
    several = [place for place, given in enumerate(answers) if len(given) > 1]
    if not several:
        return None
    names = tuple(dict.fromkeys(name for place in several for name in answers[place]))
    pairs = [[*combinations(answers[place].values(), 2)] for place in several]
    clusters = [plays[place].cluster for place in several]
    agents = [[float(a.agent == b.agent) for a, b in of_play if a.agent and b.agent] for of_play in pairs]
    placed = [[(a, b) for a, b in of_play if a.positions and b.positions] for of_play in pairs]
    steps = [[float(a.positions == b.positions) for a, b in of_play] for of_play in placed]
    near = [[float(_are_near(a, b)) for a, b in of_play] for of_play in placed]
    return LabellerAgreement(
        labellers=names,
        plays=len(several),
        agents=sum(map(bool, agents)),
        same_agent=_share(agents, clusters),
        kappa=_mean_kappa([answers[place] for place in several], names),
        steps=sum(map(bool, steps)),
        same_step=_share(steps, clusters),
        near_step=_share(near, clusters),
    )


def _answers(play: LabelledPlay) -> dict[str, _Answer]:
    """The answer of each labeller."""
    by_name: dict[str, list[Label]] = {}
    for label in play.labels:
        if label.kind == "guilt":
            by_name.setdefault(label.labeller, []).append(label)
    return {
        name: _Answer(
            agent=_MIXED.join(sorted({label.agent for label in given if label.agent is not None})) or None,
            positions=frozenset(play.positions[label.step] for label in given if label.step is not None),
        )
        for name, given in by_name.items()
    }


def _are_near(one: _Answer, other: _Answer) -> bool:
    return any(abs(a - b) <= 1 for a in one.positions for b in other.positions)


def _share(values: Sequence[Sequence[float]], clusters: Sequence[str]) -> Interval | None:
    """The mean over plays of the mean over pairs of labellers."""
    known = [(fmean(pairs), cluster) for pairs, cluster in zip(values, clusters, strict=True) if pairs]
    if not known:
        return None
    shares, of = zip(*known, strict=True)
    return share_interval(np.array(shares), None if len(set(of)) == len(of) else of)


def _mean_kappa(answers: Sequence[Mapping[str, _Answer]], names: Sequence[str]) -> float | None:
    found = [kappa for pair in combinations(names, 2) for kappa in _pair_kappa(answers, pair)]
    return fmean(found) if found else None


def _pair_kappa(answers: Sequence[Mapping[str, _Answer]], pair: tuple[str, str]) -> Iterator[float]:
    """Cohen's kappa of two labellers on the plays where both named somebody; none where one always named the same."""
    from sklearn.metrics import cohen_kappa_score  # Here, as its import is slow, and most runs have one labeller.

    both = [[given[name].agent for name in pair] for given in answers if all(name in given for name in pair)]
    given = list(zip(*(said for said in both if all(said)), strict=True))
    # Of one who always says the same chance alone agrees as often, so that kappa is 0 however often the other agrees.
    if given and all(len(set(names)) > 1 for names in given):
        yield float(cohen_kappa_score(*given))
