"""Plans a run before anything starts: expected memory, calls, tokens, cost and time."""

from mappa_analysis.plan.coach_calls import CoachAssignment as CoachAssignment
from mappa_analysis.plan.plan_run import RunPlan as RunPlan
from mappa_analysis.plan.plan_run import plan_run as plan_run
from mappa_analysis.plan.workload import PlannedAmount as PlannedAmount
from mappa_analysis.plan.workload import Workload as Workload
