"""Labelled plays as the choices that weights are fitted to."""

from __future__ import annotations

import numpy as np

from mappa.judging import LabelledRun
from mappa_coach_evidence.evidence import collect_evidence
from mappa_coach_evidence.fitting import Choice
from mappa_coach_evidence.habits import describe_habits
from mappa_coach_evidence.rules import RULES
from mappa_coach_evidence.transcript import read_transcript


def read_choice(run: LabelledRun, *, habits: bool = True) -> Choice:
    """A labelled play, of which somebody says who is guilty; with `habits` also by what only own labels can weigh."""
    assert run.guilt is not None
    transcript = read_transcript(run.scenes)
    evidence = collect_evidence(transcript, RULES)
    own = describe_habits(transcript, evidence) if habits else {}
    by_guilty = np.array([run.steps[place].agent in run.guilt.agents for place in evidence], dtype=np.bool_)
    decisive = np.array([place in run.guilt.positions for place in evidence], dtype=np.bool_)
    has_step = bool(run.guilt.positions)
    return Choice(
        question=run.task.question_hash,
        places=tuple(evidence),
        features=tuple({**found.features, **own.get(place, {})} for place, found in evidence.items()),
        decisive=decisive if has_step else by_guilty,
        by_guilty=by_guilty,
        has_step=has_step,
    )
