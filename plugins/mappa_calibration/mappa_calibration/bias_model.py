"""Bias of one coach: what identifies it, how large it is, and what nothing identifies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mappa_calibration.actions import AGENT, LENGTH, ActionColumns
from mappa_calibration.comparison import DOUBLING, Comparison, compare_references, compare_siblings
from mappa_calibration.drift import DriftMonitor, Subject
from mappa_calibration.offsets import OffsetModel
from mappa_calibration.options import BiasOptions
from mappa_core.coach import Alarm, DriftReport, Phase

EVERYONE = "everyone"
"""In place of an agent, where agents are compared with each other."""
BASIS = {
    "blind": "beyond its own blind judgement",
    "second": "beyond the second coach",
    "siblings": "among siblings of a prompt",
}
Z_SHOWN, Z_POWER = 3.2, 0.84
"""Standard errors at which a gap is shown, about, and beyond which it is found in 80 % of runs."""
PATIENCE = 10
"""Iterations in which a stratum is looked at before its preference counts as decided, seen or not."""


AgentKey = tuple[Phase, str]


class BiasModel:
    """Learns once an iteration from the scored actions of all phases. `bias` is 0 until second judgements have shown a
    preference. What siblings of a prompt show is only said, since it may be merit."""

    def __init__(self, options: BiasOptions) -> None:
        self._options = options
        self._monitor = DriftMonitor(options.alarms)
        self._siblings = DriftMonitor(options.alarms)
        self._offsets: dict[AgentKey, OffsetModel] = {}
        self._fitted: dict[AgentKey, Mapping[tuple[str, str], float]] = {}
        self._said: set[str] = set()
        self._iterations = 0
        self._unscored: dict[AgentKey, str] = {}  # Of this iteration: why second judgements have no score.

    def learn(self, columns: Mapping[Phase, ActionColumns], iteration: int) -> DriftReport:
        """Update the model with the actions of one iteration, and report gaps, alarms and what nothing identifies."""
        found: dict[Subject, Comparison] = {}
        siblings: dict[Subject, Comparison] = {}
        self._iterations += 1
        self._unscored.clear()
        for phase, actions in columns.items():
            for agent, own in self._split(actions):
                found |= self._compare(phase, agent, own)
                siblings |= self._compare_siblings(phase, agent, own)
        options = self._options
        basis = {stratifier: BASIS[options.method(stratifier)] for stratifier in options.strata}
        report = self._monitor.observe(found, iteration, basis)
        self._fitted = {key: model.fit(options.shrink) for key, model in self._offsets.items()}
        subjects = [
            (phase, agent, stratifier)
            for phase, actions in columns.items()
            for agent, _ in self._split(actions)
            for stratifier in self._strata_of(agent)
        ]
        notes = [note for subject in subjects if (note := self._note(subject)) and note[0] not in self._said]
        self._said.update(key for key, _ in notes)
        shown = self._siblings.observe(siblings, iteration, basis).alarms
        differences = [_describe_difference(alarm) for alarm in shown if alarm.kind == "level"]
        return DriftReport.merge([report, DriftReport(notes=(*(text for _, text in notes), *differences))])

    def bias(self, phase: Phase, agent: str, strata: Mapping[str, str], tokens: float) -> float:
        """Points by which a score is too high: what is shown of its preferences, clipped to `max_points`. `tokens` are
        those of the action, NaN if unknown."""
        total = 0.0
        for subject, name in (
            (EVERYONE, AGENT),
            *((agent, stratifier) for stratifier in self._options.strata if stratifier != AGENT),
        ):
            key = (phase, subject)
            fit = self._fitted.get(key)
            if fit is None or not self._monitor.is_shown((phase, subject, name)):
                continue
            if name == LENGTH:
                # An unknown number of tokens is NaN, which is not above 0, either: as long as the mean.
                doublings = math.log2(tokens) - self._offsets[key].mean_log_length if tokens > 0 else 0.0
                total += fit[LENGTH, DOUBLING] * doublings
            else:
                total += fit.get((name, agent if name == AGENT else strata.get(name, "")), 0.0)
        return min(max(total, -self._options.max_points), self._options.max_points)

    def is_undecided(self, phase: Phase, agent: str) -> bool:
        """Whether a preference that second judgements identify, and that actions of `agent` tell of, is neither shown
        nor excluded yet, and may be soon."""
        return any(
            self._monitor.is_undecided((phase, EVERYONE if name == AGENT else agent, name), PATIENCE)
            for name in self._options.identified
        )

    def _split(self, actions: ActionColumns) -> Iterator[tuple[str, ActionColumns]]:
        agents = sorted(set(actions.agent))
        # Of one agent there is nothing to compare, but it may be the one without a second score.
        if AGENT in self._options.strata and (len(agents) > 1 or _common_reason(actions) is not None):
            yield EVERYONE, actions
        for agent in agents:
            yield agent, actions.select(actions.agent == agent)

    def _strata_of(self, agent: str) -> list[str]:
        """Stratifiers by which the actions of an agent, or of everyone, are compared."""
        return [stratifier for stratifier in self._options.strata if (stratifier == AGENT) == (agent == EVERYONE)]

    def _compare(self, phase: Phase, agent: str, actions: ActionColumns) -> dict[Subject, Comparison]:
        """Compare the actions of an agent with their second judgements, and update its offsets."""
        names = [name for name in self._strata_of(agent) if name in self._options.identified]
        if not names:
            return {}
        comparison = compare_references(actions)
        if comparison is None:
            if (why := _common_reason(actions)) is not None:
                self._unscored[phase, agent] = why
            return {}
        model = self._offsets.get((phase, agent), OffsetModel())
        self._offsets[phase, agent] = model.with_comparison(comparison, names, self._options.decay)
        return {(phase, agent, name): comparison for name in names}

    def _compare_siblings(self, phase: Phase, agent: str, actions: ActionColumns) -> dict[Subject, Comparison]:
        """Compare the siblings of every prompt by the stratifiers that no second judgement tells of."""
        names = [name for name in self._strata_of(agent) if name not in self._options.identified]
        comparison = compare_siblings(actions) if names else None
        return {} if comparison is None else {(phase, agent, name): comparison for name in names}

    def _note(self, subject: Subject) -> tuple[str, str] | None:
        """What is to be said of a subject, if anything, with a key of its own."""
        phase, agent, stratifier = subject
        where = f"{stratifier} of {agent} ({phase})"
        if (why := self._untold(subject)) is not None:
            return f"untold {where}", f"a preference by {where} cannot be told from merit here: {why}"
        gaps = [gap for contrast in self._monitor.contrasts(subject) if (gap := contrast.gap) is not None]
        if not gaps or min(gap.degrees_of_freedom for gap in gaps) < 2:
            return None
        # The error of all iterations falls with the root of their number: this is that of one.
        error = max(gap.standard_error for gap in gaps) * math.sqrt(self._iterations)
        few, many = ((Z_SHOWN + Z_POWER) * error / math.sqrt(count) for count in (10, 100))
        unit = "points per doubling" if stratifier == LENGTH else "points"
        said = (
            f"a preference by {where} is seen within 10 iterations from {few:.2f} {unit} on, within 100 from {many:.2f}"
        )
        return f"power {where}", said

    def _untold(self, subject: Subject) -> str | None:
        """Why nothing identifies a preference here; None if something does, or it is too early to say."""
        phase, agent, stratifier = subject
        method = self._options.method(stratifier)
        if method == "siblings":
            can = "A `second` coach" if stratifier == LENGTH else f"`words.{stratifier}` or a `second` coach"
            return f"no second judgement of an action is blind to its {stratifier}. {can} can tell"
        why = self._unscored.get((phase, agent))
        if why is None or (phase, agent) in self._offsets:
            return None
        can = " A `second` coach can tell" if method == "blind" else ""
        return f"no second judgement has given a score so far, most often {why.rstrip('.')}.{can}"

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "monitor": self._monitor.state_dict(),
            "siblings": self._siblings.state_dict(),
            "offsets": [[*key, model.state_dict()] for key, model in self._offsets.items()],
            "said": sorted(self._said),
            "iterations": self._iterations,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._monitor.load_state_dict(state["monitor"])
        self._siblings.load_state_dict(state["siblings"])
        self._offsets = {(phase, agent): OffsetModel.from_state(found) for phase, agent, found in state["offsets"]}
        self._fitted = {key: model.fit(self._options.shrink) for key, model in self._offsets.items()}
        self._said, self._iterations = set(state["said"]), state["iterations"]


def _common_reason(actions: ActionColumns) -> str | None:
    """The most frequent reason why second judgements have no score; None if there is none."""
    reasons = Counter(why for why in (() if actions.unscored is None else actions.unscored) if why is not None)
    return reasons.most_common(1)[0][0] if reasons else None


def _describe_difference(alarm: Alarm) -> str:
    stratifier = alarm.gap.stratifier
    return (
        f"{alarm}: merit that goes with {stratifier}, an error that the coach repeats on the same action, or a "
        "preference. Siblings do not tell which, so nothing is taken off"
    )
