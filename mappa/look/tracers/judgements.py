"""What is written back to a tracer: verdicts that count and labels of people, by the span that they are about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mappa.look.coach_eval.attribution_figures import ALL
from mappa.look.counted_verdicts import select_counted
from mappa.look.importing.trajectories import RUN_NAME, SPAN_IDS
from mappa.look.judging_record import JUDGE_EVENT
from mappa.runs import RunReader
from mappa.store.queries import Event
from mappa_core import MAX_SCORE, NOBODY, InputError, RunError, Trajectory, Verdict
from mappa_core.files import read_named_file
from mappa_core.records import Label
from mappa_core.redaction import redact
from mappa_core.safe_json import parse_untrusted_json

JudgeKind = Literal["LLM", "CODE", "HUMAN"]
MAX_CERTIFICATE_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Who judged: a coach or a person. `version` is that of the coach's package, None where the run does not say it;
    `certificate` is what an evaluation of the coach found, None without one."""

    name: str
    kind: JudgeKind
    package: str | None = None
    version: str | None = None
    model: str | None = None
    certificate: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a judge says of a span, or of a whole trace, at a time in seconds since the epoch. `score` is in points,
    0-10, of a coach, and 1, 0 or -1 of a person; `label` is the agent that is blamed."""

    trace: str
    span: str | None
    judge: Judge
    score: float | None
    label: str | None
    explanation: str
    time: float
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        """Who judged, and what else is known of it, by name; all values are JSON."""
        judge = self.judge
        known = {
            "judge": judge.name,
            "judge_kind": judge.kind,
            "judge_package": judge.package,
            "judge_version": judge.version,
            "judge_model": judge.model,
            "certificate": "none" if judge.certificate is None else dict(judge.certificate),
            **self.details,
        }
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJudgements:
    """Everything of a run that is written back. `silent` verdicts say nothing: their coach abstained or failed."""

    judgements: tuple[Judgement, ...]
    traces: int
    silent: int


def read_judgements(folder: Path, *, certificate: Path | None = None) -> RunJudgements:
    """Read what coaches and people say of the plays of a run. `certificate` is what `mappa coach eval --json` wrote.

    Raises:
        RunError: the folder is not a run, was not made of traces, or nobody has judged it.
        InputError: the certificate cannot be read, or is about no coach of the run.
    """
    with RunReader(folder) as reader:
        plays = [reader.trajectory(row.id) for row in reader.trajectories if row.status != "open"]
        labels = reader.labels()
        events = reader.events()
    spans = [play for play in plays if _span_ids(play) is not None]
    if not spans:
        raise RunError(f"{folder} was not made of traces, so no span is known that a verdict could be written to")
    counted = select_counted([verdict for play in plays for verdict in play.verdicts])
    if not counted and not labels:
        raise RunError(f"{folder}: nobody has judged it yet: mappa judge {folder} --coach evidence")
    certificates = {} if certificate is None else _read_certificates(certificate)
    coaches = {verdict.coach for verdict in counted}
    if certificate is not None and not coaches & certificates.keys():
        raise InputError(
            f"{certificate}: is about {', '.join(certificates) or 'no coach'}, and {folder} was judged by "
            f"{', '.join(sorted(coaches)) or 'nobody'}"
        )
    maker = _JudgementMaker(folder.name, events, certificates)
    given = set(map(id, counted))
    judgements = [
        judgement
        for play in spans
        for judgement in maker.judge(
            play,
            [verdict for verdict in play.verdicts if id(verdict) in given],
            [label for label in labels if label.trajectory == play.id],
        )
    ]
    silent = sum(not _says_something(verdict) for verdict in counted)
    return RunJudgements(judgements=tuple(judgements), traces=len(spans), silent=silent)


def _span_ids(play: Trajectory) -> Sequence[str | None] | None:
    """The span of each action; None if the play was not read of spans."""
    found = play.task.meta.get(SPAN_IDS)
    return found if isinstance(found, Sequence) and len(found) == len(play.steps) else None


def _says_something(verdict: Verdict) -> bool:
    return verdict.score is not None or verdict.blame is not None


class _JudgementMaker:
    """Makes judgements of verdicts and labels, with what the run says of who judged."""

    def __init__(self, run: str, events: Sequence[Event], certificates: Mapping[str, Mapping[str, Any]]) -> None:
        self._run, self._certificates = run, certificates
        self._began = events[0].time if events else 0.0
        self._judgings: dict[str, list[Event]] = {}
        for event in events:
            if event.kind == JUDGE_EVENT:
                self._judgings.setdefault(str(event.body.get("name")), []).append(event)

    def judge(self, play: Trajectory, verdicts: Sequence[Verdict], labels: Sequence[Label]) -> Iterator[Judgement]:
        """What is said of a play: of its spans, then of its trace as a whole."""
        trace = str(play.task.meta[RUN_NAME])
        spans = {step.id: span for step, span in zip(play.steps, _span_ids(play) or (), strict=True)}
        for verdict in verdicts:
            if _says_something(verdict) and (span := spans.get(verdict.step)) is not None:
                yield self._judge_span(trace, span, verdict)
        for coach in dict.fromkeys(verdict.coach for verdict in verdicts):
            blaming = [one for one in verdicts if one.coach == coach and one.blame not in (None, NOBODY)]
            if blaming:
                yield self._judge_trace(trace, blaming)
        for label in labels:
            yield self._read_label(trace, None if label.step is None else spans.get(label.step), label)

    def _judge_span(self, trace: str, span: str, verdict: Verdict) -> Judgement:
        judge, time = self._find_judge(verdict)
        return Judgement(
            trace=trace,
            span=span,
            judge=judge,
            score=verdict.score,
            label=verdict.blame,
            explanation=redact(verdict.reasoning),
            time=time,
            details={
                "points": f"0-{MAX_SCORE:g}",
                "category": verdict.category,
                "suspicion": verdict.suspicion,
                "run": self._run,
                "step": verdict.step,
            },
        )

    def _judge_trace(self, trace: str, blaming: Sequence[Verdict]) -> Judgement:
        """Whom a coach blames for the whole: the agents of its verdicts, the worst first, and why the first of them."""
        worst = sorted(blaming, key=lambda verdict: MAX_SCORE if verdict.score is None else verdict.score)
        judge, time = self._find_judge(worst[0])
        return Judgement(
            trace=trace,
            span=None,
            judge=judge,
            score=None,
            label=", ".join(dict.fromkeys(str(verdict.blame) for verdict in worst)),
            explanation=redact(worst[0].reasoning),
            time=time,
            details={"category": worst[0].category, "run": self._run, "step": worst[0].step},
        )

    def _find_judge(self, verdict: Verdict) -> tuple[Judge, float]:
        """Who gave a verdict, and when."""
        asked_model = verdict.model is not None or verdict.usage is not None or bool(verdict.members)
        # The id of a verdict that `mappa judge` added ends in the name of that judging.
        rounds = next((events for name, events in self._judgings.items() if verdict.id.endswith(name)), [])
        judge = Judge(
            name=verdict.coach,
            kind="LLM" if asked_model else "CODE",
            package=_join(event.body.get("package") for event in rounds),
            version=_join(event.body.get("version") for event in rounds),
            model=verdict.model,
            certificate=self._certificates.get(verdict.coach),
        )
        # A coach that judges what is new has many rounds; the first says the same time each time.
        return judge, rounds[0].time if rounds else self._began

    def _read_label(self, trace: str, span: str | None, label: Label) -> Judgement:
        return Judgement(
            trace=trace,
            span=span,
            judge=Judge(name=label.labeller, kind="HUMAN"),
            score=label.value,
            label=label.agent,
            explanation=redact(label.reason),
            time=self._began,
            details={"category": label.category, "run": self._run, "step": label.step},
        )


def _join(said: Iterable[Any]) -> str | None:
    """What all of them say; where the coach was another version later, both."""
    return ", ".join(dict.fromkeys(str(one) for one in said if one is not None)) or None


def _read_certificates(path: Path) -> dict[str, Mapping[str, Any]]:
    """What an evaluation says of each coach, as `mappa coach eval --json` writes it."""
    raw = read_named_file(path, max_bytes=MAX_CERTIFICATE_BYTES)
    try:
        document = parse_untrusted_json(raw.decode(), max_characters=MAX_CERTIFICATE_BYTES)
        evaluations = document["evaluations"]
        return {
            str(coach["name"]): {
                "sha256": hashlib.sha256(raw).hexdigest(),
                "runs": evaluation["runs"],
                "saw_the_truth": evaluation["truth"],
                "right": {one["task"]: one["of_all"] for one in coach["figures"] if one["stratum"] == ALL},
            }
            for evaluation in evaluations
            for coach in evaluation["coaches"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a certificate of coaches ({type(error).__name__}: {error}): write one with mappa coach eval "
            "… --json"
        ) from None
