"""Estimates the actions, coach calls and sampled tokens of a number of trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappa.look.plan.coach_calls import CoachAssignment, CoachProvider
from mappa.look.plan.history import AgentHistory, RunHistory, SplitHistory, UsageTotals
from mappa.look.plan.workload import ZERO, PlannedAmount, Workload, multiply_amounts, subtract_amounts, sum_amounts
from mappa.rollout.counterfactual import max_actions_after, rollouts_per_action
from mappa_core import Split, Usage
from mappa_core.calls.options import Price, charged_price
from mappa_core.config.schema import PolicySection, RunConfig

_USD_SCALE = 1_000_000_000
"""Factor for mean token counts, so that they keep their precision as whole numbers in `Usage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadEstimator:
    """Estimates the work of a team from its recipe, its coaches, the maximum turns of its agents, and optionally a
    recorded run. `sections` holds the policy of each agent; `coach_differs`: the recorded run had other coaches."""

    config: RunConfig
    sections: Mapping[str, PolicySection]
    max_turns: Mapping[str, int]
    coaches: Sequence[CoachAssignment]
    history: RunHistory | None = None
    coach_differs: bool = False

    def estimate(self, split: Split, trajectories: PlannedAmount | None, *, judged: bool) -> Workload:
        """The work of `trajectories` of a split, with verdicts or without."""
        history = None if self.history is None else self.history.split_or_other(split)
        actions = {agent: multiply_amounts(trajectories, self._actions(agent, history)) for agent in self.sections}
        agent_work = [self._agent_work(agent, actions[agent], history) for agent in self.sections]
        coach_work = [self._coach_work(one, actions, trajectories, history) for one in self.coaches] if judged else []
        total = Workload(trajectories=trajectories)
        for part in (*agent_work, *coach_work):
            total = total + part
        return total

    def estimate_counterfactuals(self, trajectories: int) -> Workload:
        """The work of the counterfactual rollouts of an iteration of `trajectories`; no coach judges them."""
        section = self.config.credit.counterfactual
        if section.use == "none":
            return Workload()
        history = None if self.history is None else self.history.split_or_other("train")
        replaced_agents, each = tuple(section.agents or self.sections), rollouts_per_action(section)
        factor = PlannedAmount(float(each * round(section.share * trajectories)), at_most=section.use == "sibling")
        replaced_actions = {
            agent: self._actions(agent, history) if agent in replaced_agents else ZERO for agent in self.sections
        }
        total = Workload(trajectories=multiply_amounts(sum_amounts(replaced_actions.values()), factor))
        for agent in self.sections:
            actions = multiply_amounts(self._actions_after(agent, replaced_agents, history), factor)
            given = ZERO if section.use == "resample" else multiply_amounts(replaced_actions[agent], factor)
            total = total + self._agent_work(agent, actions, history, given=given)
        return total

    def _actions_after(
        self, agent: str, replaced_agents: Sequence[str], history: SplitHistory | None
    ) -> PlannedAmount | None:
        """The actions of an agent per trajectory, counted from each action of `replaced_agents` on."""
        if history is not None:
            counts = (history.agents.get(one, AgentHistory()).actions_after[agent] for one in replaced_agents)
            return PlannedAmount(sum(counts) / history.trajectories)
        bound = max_actions_after(self.max_turns, tuple(self.sections), replaced_agents)
        return None if bound is None else PlannedAmount(bound[agent], at_most=True)

    def _actions(self, agent: str, history: SplitHistory | None) -> PlannedAmount | None:
        """The actions of an agent per trajectory."""
        if history is not None:
            totals = history.agents.get(agent, AgentHistory())
            return PlannedAmount(totals.actions / history.trajectories)
        bound = self.max_turns.get(agent)
        return None if bound is None else PlannedAmount(float(bound), at_most=True)

    def _agent_work(
        self,
        agent: str,
        actions: PlannedAmount | None,
        history: SplitHistory | None,
        *,
        given: PlannedAmount | None = ZERO,
    ) -> Workload:
        """The work of an agent's policy and tools for its actions. The policy does not sample the `given` ones."""
        totals = None if history is None else history.agents.get(agent)
        section = self.sections[agent]
        bound = PlannedAmount(float(self._max_tokens(agent)), at_most=True)
        calls, sampled_actions = self._tool_calls(totals, actions), subtract_amounts(actions, given)
        if section.kind != "api":
            tokens = None if totals is None else _mean(totals.sampled, totals.actions)
            return Workload(
                actions=actions,
                sampled_tokens=multiply_amounts(sampled_actions, tokens or bound),
                prompt_tokens=multiply_amounts(
                    sampled_actions, None if totals is None else _mean(totals.prompt, totals.actions)
                ),
                tool_calls=calls,
            )
        spent = None if totals is None or not totals.api.count else totals.api
        price = charged_price(section.options)
        prompt = None if spent is None else _mean_usage(spent, "prompt_tokens")
        completion = bound if spent is None else _mean_usage(spent, "completion_tokens")
        cached = None if spent is None else _mean_usage(spent, "cached_tokens")
        return Workload(
            actions=actions,
            tool_calls=calls,
            api_calls=sampled_actions
            if spent is None
            else multiply_amounts(sampled_actions, _mean_usage(spent, "calls")),
            api_prompt_tokens=multiply_amounts(sampled_actions, prompt),
            api_completion_tokens=multiply_amounts(sampled_actions, completion),
            api_usd=multiply_amounts(sampled_actions, _usd(prompt, completion, cached, price)),
        )

    def _tool_calls(self, totals: AgentHistory | None, actions: PlannedAmount | None) -> PlannedAmount | None:
        """Tool calls of an agent's actions; unknown without history, since no recipe bounds the calls per action."""
        if not self.config.tools:
            return ZERO
        return multiply_amounts(actions, None if totals is None else _mean(totals.calls, totals.actions))

    def _max_tokens(self, agent: str) -> int:
        own = self.config.agents.get(agent)
        return self.config.sampling.max_tokens if own is None or own.max_tokens is None else own.max_tokens

    def _coach_work(
        self,
        one: CoachAssignment,
        actions: Mapping[str, PlannedAmount | None],
        trajectories: PlannedAmount | None,
        history: SplitHistory | None,
    ) -> Workload:
        """The work of the verdicts of one coach in one phase."""
        verdicts = sum_amounts(actions[agent] for agent in one.agents)
        if one.asks == ():
            return Workload(verdicts=verdicts)
        measured = {} if history is None or self.coach_differs else self._measured(one, history)
        if measured:
            parts = [_scale_measured(actions[agent], spent, one.asks) for agent, spent in measured.items()]
        else:
            parts = self._by_recipe(one, actions, trajectories)
        total = Workload(verdicts=verdicts)
        for part in parts:
            total = total + part
        return total

    def _measured(self, one: CoachAssignment, history: SplitHistory) -> dict[str, UsageTotals]:
        """The recorded usage of verdicts by agent; empty unless it is known for every agent."""
        known = {agent: history.verdicts.get((agent, one.phase)) for agent in one.agents}
        if self.history is not None and any(spent is None for spent in known.values()):
            other = self.history.split_or_other("train")  # the evaluation may have had no coach
            known = {agent: other.verdicts.get((agent, one.phase)) for agent in one.agents}
        found = {agent: spent for agent, spent in known.items() if spent is not None and spent.count}
        return found if len(found) == len(known) else {}

    def _by_recipe(
        self, one: CoachAssignment, actions: Mapping[str, PlannedAmount | None], trajectories: PlannedAmount | None
    ) -> list[Workload]:
        """Upper bounds: one call per action, or one per trajectory and kind of evidence."""
        if one.asks is None:
            return [Workload(coach_calls=None, coach_prompt_tokens=None, coach_completion_tokens=None, coach_usd=None)]
        shown = self.config.coach.reference_for
        kinds = {agent in shown for agent in one.agents}
        parts = []
        for provider in one.asks:
            if provider.by_trajectory or one.phase == "after":
                largest = max(provider.prompt_tokens[agent] for agent in one.agents)
                calls = PlannedAmount(provider.max_calls or len(kinds), at_most=True)
                parts.append(_bound_calls(provider, multiply_amounts(trajectories, calls), largest))
            else:
                parts += [_bound_calls(provider, actions[agent], provider.prompt_tokens[agent]) for agent in one.agents]
        return parts


def _bound_calls(provider: CoachProvider, calls: PlannedAmount | None, prompt_tokens: float) -> Workload:
    """An upper bound for `calls`: every prompt and reply at its maximum length."""
    prompt, completion = (
        PlannedAmount(prompt_tokens, at_most=True),
        PlannedAmount(provider.completion_tokens, at_most=True),
    )
    return Workload(
        coach_calls=calls,
        coach_prompt_tokens=multiply_amounts(calls, prompt),
        coach_completion_tokens=multiply_amounts(calls, completion),
        coach_usd=multiply_amounts(calls, _usd(prompt, completion, ZERO, provider.price)),
    )


def _scale_measured(
    actions: PlannedAmount | None, spent: UsageTotals, asks: Sequence[CoachProvider] | None
) -> Workload:
    """Verdicts at their recorded usage; at the current price if one provider is called, else at the recorded cost."""
    prompt, completion = _mean_usage(spent, "prompt_tokens"), _mean_usage(spent, "completion_tokens")
    if not spent.calls:
        usd: PlannedAmount | None = ZERO
    elif asks is not None and len(asks) == 1:
        usd = _usd(prompt, completion, _mean_usage(spent, "cached_tokens"), asks[0].price)
    else:
        usd = _mean_usage(spent, "usd")
    return Workload(
        coach_calls=multiply_amounts(actions, _mean_usage(spent, "calls")),
        coach_prompt_tokens=multiply_amounts(actions, prompt),
        coach_completion_tokens=multiply_amounts(actions, completion),
        coach_usd=multiply_amounts(actions, usd),
    )


def _usd(
    prompt: PlannedAmount | None, completion: PlannedAmount | None, cached: PlannedAmount | None, price: Price | None
) -> PlannedAmount | None:
    """US dollars for the tokens of one call; None if the price or a token count that it needs is unknown."""
    if prompt is None or completion is None:
        return None
    usage = Usage(
        calls=1,
        prompt_tokens=round(prompt.value * _USD_SCALE),
        completion_tokens=round(completion.value * _USD_SCALE),
        cached_tokens=None if cached is None else round(cached.value * _USD_SCALE),
    )
    usd = None if price is None else price.cost(usage)
    return None if usd is None else PlannedAmount(usd / _USD_SCALE, prompt.at_most or completion.at_most)


def _mean_usage(spent: UsageTotals, name: str) -> PlannedAmount | None:
    mean = spent.mean(name)
    return None if mean is None else PlannedAmount(mean)


def _mean(total: int | None, count: int) -> PlannedAmount | None:
    return None if total is None or not count else PlannedAmount(total / count)
