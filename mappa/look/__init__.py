"""Analyses of teams, runs and coaches: none of them changes a weight."""

from __future__ import annotations

from collections.abc import Iterable

from mappa.look.coach_eval.recorded import RecordedCoach, RecordedOptions
from mappa.look.importing.offers import ImportedCoach, ImportedOptions, ImportedWorkflow
from mappa.look.report_tracker import ReportOptions, ReportTracker
from mappa_core import Coach, Offer, Tracker, Workflow, hookimpl


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    yield Offer("imported", ImportedWorkflow, ImportedOptions)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("imported", ImportedCoach)
    yield Offer("recorded", RecordedCoach, RecordedOptions)


@hookimpl
def mappa_trackers() -> Iterable[Offer[Tracker]]:
    yield Offer("report", ReportTracker, ReportOptions, default=True)
