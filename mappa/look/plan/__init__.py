"""Plans a run before anything starts: expected memory, calls, tokens, cost and time."""

from mappa.look.plan.coach_calls import CoachAssignment as CoachAssignment
from mappa.look.plan.plan_run import RunPlan as RunPlan
from mappa.look.plan.plan_run import plan_run as plan_run
from mappa.look.plan.workload import PlannedAmount as PlannedAmount
from mappa.look.plan.workload import Workload as Workload
