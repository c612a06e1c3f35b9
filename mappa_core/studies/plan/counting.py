"""How often agents act, coaches are asked and tokens are sampled in so many trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappa_core.calls.options import Price
from mappa_core.calls.prices import cost
from mappa_core.config.schema import PolicySection, RunConfig
from mappa_core.protocols import Split
from mappa_core.records import Usage
from mappa_core.rollout.counterfactual import most_followed, per_action
from mappa_core.studies.plan.amounts import NONE, Amount, Work, less, times, together
from mappa_core.studies.plan.asked import Asked, Judged
from mappa_core.studies.plan.history import Acted, History, Played, Spent

_PER_ACTION = 1_000_000_000
"""Actions that a mean is told for, so that whole numbers of tokens say it exactly enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """What is known of a team: its recipe, who judges it, the most turns that its workflow lets agents take, and maybe
    a run. `sections` holds the policy of each agent; `coach_differs`: what the run says of coaches is of others."""

    config: RunConfig
    sections: Mapping[str, PolicySection]
    most_turns: Mapping[str, int]
    judged: Sequence[Judged]
    history: History | None = None
    coach_differs: bool = False

    def work(self, split: Split, trajectories: Amount | None, *, judged: bool) -> Work:
        """What `trajectories` of a split come to, with verdicts or without."""
        played = None if self.history is None else self.history.played(split)
        actions = {agent: times(trajectories, self._actions(agent, played)) for agent in self.sections}
        acted = [self._acted(agent, actions[agent], played) for agent in self.sections]
        asked = [self._asked(one, actions, trajectories, played) for one in self.judged] if judged else []
        total = Work(trajectories=trajectories)
        for part in (*acted, *asked):
            total = total + part
        return total

    def counterfactual(self, trajectories: int) -> Work:
        """What the counterfactual rollouts of an iteration of so many trajectories come to; nobody judges them."""
        section = self.config.credit.counterfactual
        if section.use == "none":
            return Work()
        played = None if self.history is None else self.history.played("train")
        asked, each = tuple(section.agents or self.sections), per_action(section)
        factor = Amount(float(each * round(section.share * trajectories)), at_most=section.use == "sibling")
        replaced = {agent: self._actions(agent, played) if agent in asked else NONE for agent in self.sections}
        total = Work(trajectories=times(together(replaced.values()), factor))
        for agent in self.sections:
            actions = times(self._followed(agent, asked, played), factor)
            given = NONE if section.use == "resample" else times(replaced[agent], factor)
            total = total + self._acted(agent, actions, played, given=given)
        return total

    def _followed(self, agent: str, asked: Sequence[str], played: Played | None) -> Amount | None:
        """An agent's actions in a trajectory from each action of `asked` on."""
        if played is not None:
            counts = (played.agents.get(one, Acted()).followed[agent] for one in asked)
            return Amount(sum(counts) / played.trajectories)
        most = most_followed(self.most_turns, tuple(self.sections), asked)
        return None if most is None else Amount(most[agent], at_most=True)

    def _actions(self, agent: str, played: Played | None) -> Amount | None:
        """An agent's actions in a trajectory."""
        if played is not None:
            acted = played.agents.get(agent, Acted())
            return Amount(acted.actions / played.trajectories)
        most = self.most_turns.get(agent)
        return None if most is None else Amount(float(most), at_most=True)

    def _acted(self, agent: str, actions: Amount | None, played: Played | None, *, given: Amount | None = NONE) -> Work:
        """What the actions of an agent take of its policy and of tools; it is not asked for those that are `given`."""
        acted = None if played is None else played.agents.get(agent)
        section = self.sections[agent]
        most = Amount(float(self._most_tokens(agent)), at_most=True)
        calls, asked = self._calls(acted, actions), less(actions, given)
        if section.kind != "api":
            sampled = None if acted is None else _mean(acted.sampled, acted.actions)
            return Work(
                actions=actions,
                sampled_tokens=times(asked, sampled or most),
                prompt_tokens=times(asked, None if acted is None else _mean(acted.prompt, acted.actions)),
                tool_calls=calls,
            )
        spent = None if acted is None or not acted.api.count else acted.api
        price: Price | None = getattr(section.options, "price", None)
        prompt = None if spent is None else _each(spent, "prompt_tokens")
        completion = most if spent is None else _each(spent, "completion_tokens")
        cached = None if spent is None else _each(spent, "cached_tokens")
        return Work(
            actions=actions,
            tool_calls=calls,
            api_calls=asked if spent is None else times(asked, _each(spent, "calls")),
            api_prompt_tokens=times(asked, prompt),
            api_completion_tokens=times(asked, completion),
            api_usd=times(asked, _usd(prompt, completion, cached, price)),
        )

    def _calls(self, acted: Acted | None, actions: Amount | None) -> Amount | None:
        """Calls of tools that so many actions of an agent make; how many one may hold, no recipe says."""
        if not self.config.tools:
            return NONE
        return times(actions, None if acted is None else _mean(acted.calls, acted.actions))

    def _most_tokens(self, agent: str) -> int:
        own = self.config.agents.get(agent)
        return self.config.sampling.max_tokens if own is None or own.max_tokens is None else own.max_tokens

    def _asked(
        self,
        one: Judged,
        actions: Mapping[str, Amount | None],
        trajectories: Amount | None,
        played: Played | None,
    ) -> Work:
        """What the verdicts of one coach in one phase take."""
        verdicts = together(actions[agent] for agent in one.agents)
        if one.asks == ():
            return Work(verdicts=verdicts)
        measured = {} if played is None or self.coach_differs else self._measured(one, played)
        if measured:
            parts = [_measured_work(actions[agent], spent, one.asks) for agent, spent in measured.items()]
        else:
            parts = self._by_recipe(one, actions, trajectories)
        total = Work(verdicts=verdicts)
        for part in parts:
            total = total + part
        return total

    def _measured(self, one: Judged, played: Played) -> dict[str, Spent]:
        """What verdicts took by agent; empty unless that is known of each."""
        known = {agent: played.verdicts.get((agent, one.phase)) for agent in one.agents}
        if self.history is not None and any(spent is None for spent in known.values()):
            other = self.history.played("train")  # evaluation may have been without a coach
            known = {agent: other.verdicts.get((agent, one.phase)) for agent in one.agents}
        found = {agent: spent for agent, spent in known.items() if spent is not None and spent.count}
        return found if len(found) == len(known) else {}

    def _by_recipe(self, one: Judged, actions: Mapping[str, Amount | None], trajectories: Amount | None) -> list[Work]:
        """Bounds: a call an action, or one a trajectory and kind of evidence."""
        if one.asks is None:
            return [Work(coach_calls=None, coach_prompt_tokens=None, coach_completion_tokens=None, coach_usd=None)]
        shown = self.config.coach.reference_for
        kinds = {agent in shown for agent in one.agents}
        parts = []
        for asked in one.asks:
            if asked.by_trajectory or one.phase == "after":
                largest = max(asked.prompt_tokens[agent] for agent in one.agents)
                parts.append(_bound(asked, times(trajectories, Amount(len(kinds), at_most=True)), largest))
            else:
                parts += [_bound(asked, actions[agent], asked.prompt_tokens[agent]) for agent in one.agents]
        return parts


def _bound(asked: Asked, calls: Amount | None, prompt_tokens: float) -> Work:
    """So many questions and replies, each as long as it may be."""
    prompt, completion = Amount(prompt_tokens, at_most=True), Amount(asked.completion_tokens, at_most=True)
    return Work(
        coach_calls=calls,
        coach_prompt_tokens=times(calls, prompt),
        coach_completion_tokens=times(calls, completion),
        coach_usd=times(calls, _usd(prompt, completion, NONE, asked.price)),
    )


def _measured_work(actions: Amount | None, spent: Spent, asks: Sequence[Asked] | None) -> Work:
    """Verdicts as they were in the run; at the price of now where one provider is asked, else at what was paid."""
    prompt, completion = _each(spent, "prompt_tokens"), _each(spent, "completion_tokens")
    if not spent.calls:
        usd: Amount | None = NONE
    elif asks is not None and len(asks) == 1:
        usd = _usd(prompt, completion, _each(spent, "cached_tokens"), asks[0].price)
    else:
        usd = _each(spent, "usd")
    return Work(
        coach_calls=times(actions, _each(spent, "calls")),
        coach_prompt_tokens=times(actions, prompt),
        coach_completion_tokens=times(actions, completion),
        coach_usd=times(actions, usd),
    )


def _usd(prompt: Amount | None, completion: Amount | None, cached: Amount | None, price: Price | None) -> Amount | None:
    """US dollars for one call's tokens; None where the price or a number that it needs is not known."""
    if prompt is None or completion is None:
        return None
    usage = Usage(
        calls=1,
        prompt_tokens=round(prompt.value * _PER_ACTION),
        completion_tokens=round(completion.value * _PER_ACTION),
        cached_tokens=None if cached is None else round(cached.value * _PER_ACTION),
    )
    usd = cost(usage, price)
    return None if usd is None else Amount(usd / _PER_ACTION, prompt.at_most or completion.at_most)


def _each(spent: Spent, name: str) -> Amount | None:
    mean = spent.each(name)
    return None if mean is None else Amount(mean)


def _mean(total: int | None, count: int) -> Amount | None:
    return None if total is None or not count else Amount(total / count)
