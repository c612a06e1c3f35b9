"""What the coach `evidence` says of labelled failures: sets that its rules were made on, and sets kept unseen.

    python docs/evidence/unseen_blame.py DATA --open
    python docs/evidence/unseen_blame.py DATA --once docs/evidence/results/unseen_blame.json

DATA is a folder with the public sets, a file each: who_and_when, processbench_gsm8k, processbench_math,
bigbench_mistake, stepshield, agent_process_bench_hotpotqa (.jsonl.gz), agentrx_tau with agentrx_tau_labels. The rules
were made on the development half of Who&When (`halves.py`), ProcessBench gsm8k, BIG-Bench-Mistake, StepShield and
hotpotqa (`--open` reports those). Then they were frozen, by the hash that the results hold, and the others were judged
once (`--once`).

Of every set: how many failed plays were accused and how often the accused action was the labelled one (precision), with
the best constant on those plays; how often the labelled action is the first, or among the first three, of the ranking;
how far the accusing score is from the share that was right; and of plays known to be right, how many were accused.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from halves import is_reported

from mappa.evaluation.statistics import share_interval
from mappa.look.importing.import_result import count_agents
from mappa.look.importing.log_mapping import LogMapping
from mappa.look.importing.offers import ImportedOptions, ImportedWorkflow
from mappa.look.importing.read_logs import read_logs
from mappa.look.importing.trajectories import build_trajectories
from mappa_coach_evidence.coach import EvidenceCoach
from mappa_coach_evidence.options import EvidenceOptions
from mappa_core import MAX_SCORE, NOBODY, Scene, Verdict

ROOT = Path(__file__).parents[2]
_PACKAGE = "plugins/mappa_coach_evidence/mappa_coach_evidence"
RULES = (
    f"{_PACKAGE}/rules/*.py",
    *(
        f"{_PACKAGE}/{name}.py"
        for name in ("coach", "dates", "equations", "evidence", "findings", "places", "text", "transcript", "weights")
    ),
    "mappa_core/tools/error_texts.py",
)
"""The files that say what is evidence, and what it weighs."""
FROZEN = "2ce8bbd0c937cc3e611938bf06504b13ba1dad4b58cd02b2b11445078ac97563"
"""Their hash when they were frozen, before the unseen sets were judged."""
OPEN = (
    "Who&When generated, development",
    "Who&When hand-crafted, development",
    "ProcessBench gsm8k",
    "BIG-Bench-Mistake",
    "StepShield",
    "AgentProcessBench hotpotqa",
)
UNSEEN = ("Who&When generated, reported", "Who&When hand-crafted, reported", "ProcessBench math", "AgentRx tau")


@dataclass(frozen=True, kw_only=True, eq=False)
class Play:
    """A play as its coach sees it, and the positions of the actions that are labelled as decisive; none if the play is
    right."""

    scenes: Sequence[Scene]
    decisive: frozenset[int]
    right: bool


def rules_hash() -> str:
    """The hash of the files that say what is evidence."""
    files = sorted(path for pattern in RULES for path in ROOT.glob(pattern))
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


LabelledLine = tuple[dict[str, Any], int | None, bool]
"""A conversation, the number of the message that is labelled as decisive, and whether the play is right."""


def read_plays(name: str, data: Path, scratch: Path) -> list[Play]:
    """The plays of a set, by its name."""
    return build_plays(list(_lines(name, data)), scratch)


def build_plays(lines: Sequence[LabelledLine], scratch: Path) -> list[Play]:
    """The plays of labelled conversations, read as an import reads them, by way of a file in `scratch`."""
    path = scratch / "plays.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line, _, _ in lines), encoding="utf-8")
    mapping = LogMapping(messages="history", prompt="question", agent_from="name", task_id="number")
    logs, _ = read_logs([path], mapping, None)
    workflow = ImportedWorkflow(ImportedOptions(agents=dict.fromkeys(count_agents(logs), "")))
    numbers = {str(line["number"]): (mistake, right) for line, mistake, right in lines}
    plays = []
    for made in build_trajectories([log for log in logs if log.acts]):
        mistake, right = numbers[made.trajectory.task.id]
        steps = made.trajectory.steps
        at = [place for place, number in enumerate(made.trajectory.task.meta["messages"]) if number == mistake]
        team = {step.agent: workflow.agents[step.agent] for step in steps}
        scenes = [
            Scene(
                task=made.trajectory.task, role=team[step.agent], step=step, team=team,
                earlier=steps[:place], later=steps[place + 1 :],
                # A success is not shown: the question is whether the actions alone would be accused.
                outcome={} if right else {"correct": 0.0}, metric="correct",
            )
            for place, step in enumerate(steps)
        ]  # fmt: skip
        plays.append(Play(scenes=scenes, decisive=frozenset(at), right=right))
    return plays


def _lines(name: str, data: Path) -> Iterator[LabelledLine]:
    if name.startswith("Who&When"):
        for number, row in enumerate(_rows(data, "who_and_when")):
            generated = row["source"].startswith("Algorithm")
            half = "reported" if is_reported(row["question"]) else "development"
            if name == f"Who&When {'generated' if generated else 'hand-crafted'}, {half}":
                key = "name" if any("name" in message for message in row["history"]) else "role"
                history = [{**message, "name": message.get(key)} for message in row["history"]]
                yield _line(number, row["question"], history), int(row["mistake_step"]), False
    elif name.startswith("ProcessBench"):
        for number, row in enumerate(_rows(data, f"processbench_{name.split()[1]}")):
            yield _chain(number, row["problem"], row["steps"], row["label"])
    elif name == "BIG-Bench-Mistake":
        for number, row in enumerate(_rows(data, "bigbench_mistake")):
            mistake = row["mistake_index"]
            yield _chain(number, row["input"], row["steps"], -1 if mistake is None else mistake)
    elif name == "StepShield":
        for number, row in enumerate(_rows(data, "stepshield")):
            yield _line(number, row["question"], row["history"]), int(row["mistake_step"]), False
    elif name == "AgentProcessBench hotpotqa":
        for number, row in enumerate(_rows(data, "agent_process_bench_hotpotqa")):
            wrong = [int(step) for step, value in row["step_labels"].items() if value == -1]
            right = row["final_label"] == 1
            yield _line(number, row["question"], _named(row["messages"])), min(wrong, default=None), right
    else:
        labels = {row["trajectory_id"]: row for row in _rows(data, "agentrx_tau_labels")}
        for number, row in enumerate(_rows(data, "agentrx_tau")):
            label = labels[row["task_id"]]
            cause = label["root_cause"]["failure_id"]
            step = next(one["step_number"] for one in label["failures"] if one["failure_id"] == cause)
            # Steps are counted from 1, the system prompt included.
            yield _line(number, row["info"]["task"]["instruction"], _named(row["traj"])), step - 1, False


def _chain(number: int, problem: str, steps: Sequence[str], label: int) -> LabelledLine:
    history = [{"role": "user", "name": "user", "content": problem}]
    history += [{"role": "assistant", "name": "solver", "content": step} for step in steps]
    return _line(number, problem, history), None if label < 0 else label + 1, label < 0


def _line(number: int, question: str, history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"number": number, "question": question, "history": history}


def _named(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {"assistant": {"name": "assistant"}}
    return [{**one, "content": one.get("content") or "", **names.get(one["role"], {})} for one in messages]


def _rows(data: Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def measure(plays: Sequence[Play]) -> dict[str, Any]:
    """The figures of a set: shares are 0-1, with 95 % intervals."""
    coach = EvidenceCoach(EvidenceOptions())
    judged = [(play, asyncio.run(coach.review(list(play.scenes)))) for play in plays]
    failed = [(play, verdicts) for play, verdicts in judged if not play.right and play.decisive]
    unlabelled = sum(not play.right and not play.decisive for play in plays)
    right = [verdicts for play, verdicts in judged if play.right]
    accused = [(play, place, verdicts[place]) for play, verdicts in failed if (place := _accused(verdicts)) is not None]
    hits = [float(place in play.decisive) for play, place, _ in accused]
    said = [1 - (verdict.score or 0.0) / MAX_SCORE for _, _, verdict in accused]
    ranks = [_rank(verdicts) for _, verdicts in failed]
    first = [float(bool(rank) and rank[0] in play.decisive) for (play, _), rank in zip(failed, ranks, strict=True)]
    three = [float(not play.decisive.isdisjoint(rank[:3])) for (play, _), rank in zip(failed, ranks, strict=True)]
    return {
        "failed": len(failed),
        "label_is_no_action": unlabelled,
        "accused": len(accused),
        "accused_right": _share(hits),
        "best_constant_on_accused": _best_constant([play for play, _, _ in accused]),
        "calibration_error": abs(float(np.mean(said)) - float(np.mean(hits))) if hits else None,
        "first": _share(first),
        "top_three": _share(three),
        "best_constant": _best_constant([play for play, _ in failed]),
        "right": len(right),
        "right_accused": _share([float(_accused(verdicts) is not None) for verdicts in right]),
        "by_category": Counter(str(verdict.category) for _, _, verdict in accused),
    }


def _accused(verdicts: Sequence[Verdict]) -> int | None:
    """The action with the lowest verdict that blames somebody; one without a score comes last."""
    places = [place for place, one in enumerate(verdicts) if one.blame not in (None, NOBODY)]
    scored = [place for place in places if verdicts[place].score is not None]
    return min(scored, key=lambda place: verdicts[place].score or 0.0, default=places[0] if places else None)


def _rank(verdicts: Sequence[Verdict]) -> list[int]:
    places = [place for place, verdict in enumerate(verdicts) if verdict.suspicion is not None]
    return sorted(places, key=lambda place: -(verdicts[place].suspicion or 0.0))


def _best_constant(plays: Sequence[Play]) -> float | None:
    """The share that the best answer without a coach finds: first, last, the most common position, chance."""
    if not plays:
        return None
    common = Counter(place for play in plays for place in play.decisive).most_common(1)[0][0]
    shares = [
        [float(0 in play.decisive) for play in plays],
        [float(len(play.scenes) - 1 in play.decisive) for play in plays],
        [float(common in play.decisive) for play in plays],
        [len(play.decisive) / len(play.scenes) for play in plays],
    ]
    return max(float(np.mean(share)) for share in shares)


def _share(values: Sequence[float]) -> dict[str, float | None] | None:
    if not values:
        return None
    found = share_interval(np.array(values), None)
    return {"mean": found.mean, "low": found.low, "high": found.high}


def show(name: str, figures: dict[str, Any]) -> None:
    """Print the figures of a set in a line."""

    def percent(value: Any) -> str:
        if value is None:
            return "-"
        if isinstance(value, float):
            return f"{100 * value:.1f}"
        if value["low"] is None:
            return f"{100 * value['mean']:.1f}"
        return f"{100 * value['mean']:.1f} [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"

    print(
        f"{name}: {figures['accused']} of {figures['failed']} accused, right {percent(figures['accused_right'])} "
        f"(constant {percent(figures['best_constant_on_accused'])}), calibration error "
        f"{percent(figures['calibration_error'])}; first {percent(figures['first'])}, top three "
        f"{percent(figures['top_three'])} (constant {percent(figures['best_constant'])}); right plays accused "
        f"{percent(figures['right_accused'])} of {figures['right']}; {dict(figures['by_category'])}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--open", action="store_true", help="the sets that the rules were made on")
    parser.add_argument("--once", type=Path, metavar="FILE", help="all sets, the unseen ones among them, into FILE")
    chosen = parser.parse_args()
    if chosen.once is not None and rules_hash() != FROZEN:
        parser.error("the rules are not the frozen ones: what was looked at once would be looked at again")
    names = OPEN if chosen.once is None else (*OPEN, *UNSEEN)
    found = {}
    with TemporaryDirectory() as scratch:
        for name in names:
            found[name] = measure(read_plays(name, chosen.data, Path(scratch)))
            show(name, found[name])
    if chosen.once is not None:
        stored = {"rules": rules_hash(), "unseen": list(UNSEEN), "sets": found}
        chosen.once.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
