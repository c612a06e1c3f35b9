"""Plans a run before anything starts: expected memory, calls, tokens, cost and time."""

from mappa_core.studies.plan.coach_calls import CoachAssignment as CoachAssignment
from mappa_core.studies.plan.plan_run import RunPlan as RunPlan
from mappa_core.studies.plan.plan_run import plan_run as plan_run
from mappa_core.studies.plan.workload import PlannedAmount as PlannedAmount
from mappa_core.studies.plan.workload import Workload as Workload
