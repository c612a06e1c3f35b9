"""Plans a run before anything starts: expected memory, calls, tokens, cost and time."""

from mappa_core.studies.plan.amounts import PlannedAmount as PlannedAmount
from mappa_core.studies.plan.amounts import Workload as Workload
from mappa_core.studies.plan.asked import CoachAssignment as CoachAssignment
from mappa_core.studies.plan.planning import RunPlan as RunPlan
from mappa_core.studies.plan.planning import plan_run as plan_run
