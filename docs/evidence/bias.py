"""When does a coach's preference become drift of the agents, and does correcting it help?

A lenient coach, `5 + 0.2 * the rules' points`, in four forms. `fair` likes nothing. `task` gives 1.5 points more on
tasks that only add and subtract (`sum`), which no agent can choose. `plan` gives them for a *plan* that only adds and
subtracts, which the Problem Solver can choose: that is more than it gives for a right plan (1.4). `corrected` is `plan`
inside the coach `bias_corrected` by strata of the plan. The tasks to watch are those that need the other kind of plan
(`scale`).

Claimed beforehand, of accuracy on `scale`. `task` makes no difference to `fair`: what nobody can choose is an offset,
and no incentive. `plan` is worse than `fair`: the Solver comes to write such plans for everything. `corrected` is
better than `plan`, and no different from `fair`. Were preferences harmless, `plan` would be as `fair`; were they
harmful whatever agents can choose, `task` would be worse, too. (That `corrected` is better than `plan` was seen before,
over three seeds of the same settings.)

Claimed after these four had been run, and before the two arms `per task`: what made `task` worse is that advantages are
whitened over an iteration, so that all that is done on a task that is not liked is below average. With a baseline of
the task's own samples `task` makes no difference to `fair`. Were it the coach's preference itself that does harm, it
would do so there, too.
"""

from __future__ import annotations

import click
import lenient_offers
from claims import Claim, report
from study import Asked, Study, Words, study_options

WATCHED = "scale"
COMMON = ("coach.use=lenient",)
LIKES_PLAN = "{use: lenient, options: {likes: plan}}"
PER_TASK = ("estimator.use=reinforce_plus_plus_baseline",)
ARMS: dict[str, Words] = {
    "fair": (*COMMON, "coach.options.likes=nothing"),
    "task": (*COMMON, "coach.options.likes=task"),
    "plan": (*COMMON, "coach.options.likes=plan"),
    "corrected": (f"coach={{use: bias_corrected, options: {{coach: {LIKES_PLAN}, strata: [plan]}}}}",),
    "fair, per task": (*COMMON, *PER_TASK, "coach.options.likes=nothing"),
    "task, per task": (*COMMON, *PER_TASK, "coach.options.likes=task"),
}
CLAIMS = (
    Claim(one="task", other="fair", stratum=WATCHED, expected="no significant difference"),
    Claim(one="plan", other="fair", stratum=WATCHED, expected="worse"),
    Claim(one="corrected", other="plan", stratum=WATCHED, expected="better"),
    Claim(one="corrected", other="fair", stratum=WATCHED, expected="no significant difference"),
    Claim(one="task, per task", other="fair, per task", stratum=WATCHED, expected="no significant difference"),
)


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="bias", asked=asked, offers={"lenient": lenient_offers})
    report(study, study.train(ARMS, asked.seeds), CLAIMS)


if __name__ == "__main__":
    main()
