"""What a recipe is going to take, before anything starts: memory, calls, tokens, money and time."""

from mappa_core.studies.plan.amounts import Amount as Amount
from mappa_core.studies.plan.amounts import Work as Work
from mappa_core.studies.plan.asked import Judged as Judged
from mappa_core.studies.plan.planning import Plan as Plan
from mappa_core.studies.plan.planning import plan as plan
