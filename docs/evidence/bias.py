"""When does a coach's preference become drift of the agents, and does correcting it help?

A lenient coach, `5 + 0.2 * the rules' points`. `fair` likes nothing. `task` gives 1.5 points more on tasks that only
add and subtract (`sum`), which no agent can choose. `plan` gives them for a *plan* that only adds and subtracts,
which the Problem Solver can choose: that is more than it gives for a right plan (1.4); `plan, half` gives 0.75.
`corrected` is `plan` inside the coach `bias_corrected` by strata of the plan, with the fair coach as the second one,
which judges all actions again until the preference is shown, and a quarter from then on; `fair, corrected` is `fair` in
the same way, and `corrected, late` has a quarter judged again from the start. What an oracle would correct, who knows
the bonus, is `fair`. `per task` arms have a baseline of the task's own samples. The tasks to watch are those that need
the other kind of plan (`scale`).

Claimed beforehand, of accuracy on `scale`. `plan` is worse than `fair`: the Solver comes to write such plans for
everything. `corrected` is better than `plan`, and no different from `fair`. `fair, corrected` is no different from
`fair`: what is not there is not taken off. `task, per task` is no different from `fair, per task`: with a baseline of
the task's own samples a preference cancels that no agent can choose. Were preferences harmless, `plan` would be as
`fair`.

Claimed when something had been seen. Three seeds of the first and one of the second: `corrected, late` is worse than
`corrected`, for a preference that is found late is served by then. Five seeds of earlier code, where no harm was
claimed: `task` is worse than `fair`, for where advantages are whitened over an iteration, whatever is done on a task
that is not liked is below average.
"""

from __future__ import annotations

import click
import lenient_offers
from claims import Claim, report
from study import Asked, Study, Words, study_options

WATCHED = "scale"
PER_TASK = ("estimator.use=reinforce_plus_plus_baseline",)


def lenient(likes: str, bonus: float = 1.5) -> str:
    return f"{{use: lenient, options: {{likes: {likes}, bonus: {bonus}}}}}"


def corrected(coach: str, *more: str) -> Words:
    options = ", ".join((f"coach: {coach}", "strata: [plan]", *more))
    return (f"coach={{use: bias_corrected, options: {{{options}}}}}",)


SECOND = f"second: {lenient('nothing')}"
ARMS: dict[str, Words] = {
    "fair": (f"coach={lenient('nothing')}",),
    "fair, corrected": corrected(lenient("nothing"), SECOND),
    "task": (f"coach={lenient('task')}",),
    "plan": (f"coach={lenient('plan')}",),
    "plan, half": (f"coach={lenient('plan', 0.75)}",),
    "corrected": corrected(lenient("plan"), SECOND),
    "corrected, late": corrected(lenient("plan"), SECOND, "initial_share: 0"),
    "half, corrected": corrected(lenient("plan", 0.75), SECOND),
    "fair, per task": (f"coach={lenient('nothing')}", *PER_TASK),
    "task, per task": (f"coach={lenient('task')}", *PER_TASK),
}
CLAIMS = (
    Claim(one="plan", other="fair", stratum=WATCHED, expected="worse"),
    Claim(one="corrected", other="plan", stratum=WATCHED, expected="better"),
    Claim(one="corrected", other="fair", stratum=WATCHED, expected="no significant difference"),
    Claim(one="fair, corrected", other="fair", stratum=WATCHED, expected="no significant difference"),
    Claim(one="corrected, late", other="corrected", stratum=WATCHED, expected="worse"),
    Claim(one="task", other="fair", stratum=WATCHED, expected="worse"),
    Claim(one="task, per task", other="fair, per task", stratum=WATCHED, expected="no significant difference"),
)


@click.command(help=__doc__)
@click.option("--arm", "chosen", multiple=True, type=click.Choice(list(ARMS)), help="Only this arm; repeatable.")
@study_options
def main(asked: Asked, chosen: tuple[str, ...]) -> None:
    study = Study(name="bias", asked=asked, offers={"lenient": lenient_offers})
    arms = {name: words for name, words in ARMS.items() if name in (chosen or ARMS)}
    claims = [claim for claim in CLAIMS if {claim.one, claim.other} <= arms.keys()]
    report(study, study.train(arms, asked.seeds), claims)


if __name__ == "__main__":
    main()
