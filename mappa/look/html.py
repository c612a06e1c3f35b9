"""Results as tables of HTML, which notebooks show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mappa.cli.formats import format_or_dash, format_percent, format_problem_count, format_share
from mappa.cli.result_tables import format_gain
from mappa.look.cli.compare import comparison_notes, describe_mean
from mappa.look.cli.verdict_tables import format_estimate
from mappa.look.compare import Comparison, format_p
from mappa.look.counted_verdicts import LOW_SCORE
from mappa.look.judge import JudgedRun
from mappa.look.observe import Diagnosis
from mappa.look.observe_logs import LogObservation
from mappa.runs.html_table import html_table, html_text
from mappa.store.agent_columns import AGENT_COLUMNS, AgentSummary
from mappa.store.summary import EvalSummary, FigureSummary, StratumSummary, Summary


def summary_html(summary: Summary) -> str:
    """Show how a run stands, its gains, and its agents in the last iteration."""
    row = (f"{summary.plugin}/{summary.recipe}", *map(str, (summary.seed, summary.status, summary.iterations)))
    head = html_table("", ("recipe", "seed", "status", "iterations", "verdicts"), [(*row, str(summary.coach.verdicts))])
    return head + ("" if summary.eval is None else gains_html(summary.eval)) + agents_html(summary.agents)


def gains_html(results: EvalSummary) -> str:
    """Show every figure before and after training, and its gain: over all tasks and by stratum."""
    parts: dict[str, StratumSummary] = {"all": results, **results.strata}
    rows = [
        (f"{measure}, {name}", *_gain_cells(part if measure == results.metric else part.figures[measure]))
        for measure in (results.metric, *results.figures)
        for name, part in parts.items()
    ]
    problems = format_problem_count(results.n, results.clusters, results.known)
    return html_table(f"held-out tasks: {problems}, 95 % intervals", ("", "before", "after", "gain"), rows)


def _gain_cells(result: FigureSummary) -> tuple[str, str, str]:
    return format_share(result.before), format_share(result.after), format_gain(result)


def agents_html(agents: Mapping[str, AgentSummary]) -> str:
    """Show the figures of each agent in an iteration."""
    rows = [(name, *(column.cell(figures) for column in AGENT_COLUMNS)) for name, figures in agents.items()]
    return html_table("agents in the last iteration", ("", *(column.title for column in AGENT_COLUMNS)), rows)


def judged_html(judged: JudgedRun) -> str:
    """Show the verdicts that were added, and by agent how the advantages change under them."""
    counts = judged.counts
    given = (judged.coach, *map(str, (counts.verdicts, counts.scored, counts.abstained, counts.failed)))
    blaming = f"{judged.blaming} of {judged.rollouts}"
    columns = ("coach", "verdicts", "scored", "abstained", "failed", "rollouts in which it blames somebody")
    rows = [
        (name, str(change.actions), format_percent(change.flip_share), format_estimate(change.correlation, "+z.2f"))
        for name, change in {"all": judged.overall, **judged.by_agent}.items()
        if change.actions
    ]
    changed = html_table(
        "advantages of each action, before and after", ("agent", "actions", "signs flipped", "correlation"), rows
    )
    return html_table(f"added to {judged.folder}", columns, [(*given, blaming)]) + changed


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Show which agents fail, how often and why, and where to look first."""
    looked_at = diagnosis.looked_at
    agents = [
        (
            one.agent,
            str(one.actions),
            format_or_dash(None if one.score is None else one.score.mean, ".1f"),
            f"{one.low} of {one.scored}",
            f"{one.blamed} of {looked_at}",
        )
        for one in diagnosis.agents
    ]
    return (
        _outcome_html(
            diagnosis.folder,
            diagnosis.rollouts,
            diagnosis.unsuccessful if diagnosis.has_outcome else None,
            looked_at,
            diagnosis.cannot_tell,
        )
        + html_table("agents", ("", "actions", "score", f"below {LOW_SCORE:g}", "to blame"), agents)
        + _examples_html(diagnosis)
    )


def observation_html(observed: LogObservation) -> str:
    """Show what is new, which agents fail in all plays, how often and why, and where to look first in the newest."""
    sums = observed.sums
    new = f"{observed.imported.trajectories} plays are new; {observed.verdicts.coach} judged {observed.verdicts.plays}"
    agents = [
        (
            one.agent,
            str(one.actions),
            format_or_dash(one.score, ".1f"),
            f"{one.low} of {one.scored}",
            f"{one.blamed} of {sums.looked_at}",
        )
        for one in sums.agents
    ]
    return (
        f"<div>{html_text(new)}</div>"
        + _outcome_html(
            observed.folder,
            sums.plays,
            sums.unsuccessful if sums.known or sums.unsuccessful else None,
            sums.looked_at,
            sums.cannot_tell,
        )
        + html_table("agents", ("", "actions", "score", f"below {LOW_SCORE:g}", "to blame"), agents)
        + _examples_html(observed.diagnosis)
    )


def _outcome_html(folder: Path, plays: int, unsuccessful: int | None, looked_at: int, cannot_tell: int) -> str:
    """`unsuccessful` None: no outcome is known."""
    cells = (str(plays), format_or_dash(unsuccessful, "d"), f"{cannot_tell} of {looked_at}")
    return html_table(str(folder), ("plays", "did not succeed", "cannot tell who is to blame in"), [cells])


def _examples_html(diagnosis: Diagnosis) -> str:
    lowest = [
        (one.step, agent.agent, one.reasoning, f"{one.score:g}", str(one.count))
        for agent in diagnosis.agents
        for one in agent.examples
    ]
    suspects = [
        (verdict.step, verdict.reasoning, str(place))
        for suspects in diagnosis.suspects
        for place, verdict in enumerate(suspects.verdicts, 1)
    ]
    return html_table("lowest actions", ("step", "agent", "reason", "score", "times"), lowest, text=3) + html_table(
        "where to look first; nobody is accused by it", ("step", "reason", "place"), suspects, text=2
    )


def comparison_html(compared: Comparison) -> str:
    """Show the mean of each arm, each pair's difference with what follows from it, and what else differs."""
    problems = format_problem_count(compared.problems, compared.clusters)
    arms = [
        (arm.name, ", ".join(map(str, arm.seeds)), describe_mean(arm), *map(format_share, arm.parsing.values()))
        for arm in compared.arms
    ]
    columns = ("arm", "seeds", "mean", *compared.arms[0].parsing)
    pairs = [
        (
            f"{pair.one} - {pair.other}",
            format_share(pair.difference, sign=True),
            format_p(pair.p_adjusted),
            pair.finding,
        )
        for pair in compared.pairs
    ]
    return (
        html_table(f"held-out {compared.measure}, {problems}, 95 % intervals", columns, arms)
        + html_table("", ("", "difference", "p, all tests", "finding"), pairs)
        + "".join(f"<div>{html_text(note)}</div>" for note in comparison_notes(compared))
    )
