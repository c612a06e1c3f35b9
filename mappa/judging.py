"""For what holds coaches against labels: labelled runs, the verdicts of several coaches on them, and estimates with
intervals over the runs."""

from mappa.look.cli.coach_choices import CoachChoice as CoachChoice
from mappa.look.cli.coach_choices import open_coaches as open_coaches
from mappa.look.cli.coach_choices import parse_coaches as parse_coaches
from mappa.look.cli.coach_choices import recorded_judges as recorded_judges
from mappa.look.cli.verdict_tables import VerdictBar as VerdictBar
from mappa.look.cli.verdict_tables import check_answered as check_answered
from mappa.look.cli.verdict_tables import make_table as make_table
from mappa.look.cli.verdict_tables import verdict_bar as verdict_bar
from mappa.look.coach_eval.batch_judge import JudgingLimits as JudgingLimits
from mappa.look.coach_eval.batch_judge import judge_actions as judge_actions
from mappa.look.coach_eval.batch_judge import judge_in_turn as judge_in_turn
from mappa.look.coach_eval.bootstrap import Estimate as Estimate
from mappa.look.coach_eval.bootstrap import Statistic as Statistic
from mappa.look.coach_eval.bootstrap import estimate as estimate
from mappa.look.coach_eval.bootstrap import paired_difference as paired_difference
from mappa.look.coach_eval.bootstrap import ratio as ratio
from mappa.look.coach_eval.labelled_runs import Benchmark as Benchmark
from mappa.look.coach_eval.labelled_runs import LabelledRun as LabelledRun
from mappa.look.coach_eval.labelled_runs import read_benchmark as read_benchmark
from mappa.look.coach_eval.labelled_runs import read_labelled_runs as read_labelled_runs
from mappa.look.coach_eval.metrics import VerdictCounts as VerdictCounts
from mappa.look.coach_eval.metrics import count_statuses as count_statuses
from mappa.look.output_files import check_writable as check_writable
