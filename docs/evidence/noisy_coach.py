"""How wrong may a coach be before its verdicts are worth less than the outcome alone? Wrong on 0 to 40 % of actions.

On the mix *hard* (`process_vs_outcome.py`) *process* learns from a coach that gives 10 - p in place of p points to that
share of actions, whoever took them; at 50 % its points would say nothing. *outcome* gives every action of a rollout
whether the final answer was right, which is never wrong. Both run at the rate that was best for both in `opponents.py`.

Claimed beforehand. Process rewards are better than the outcome with 10 and 20 % of the verdicts wrong, and worse with
40 %: whitening keeps the size of rewards, so a fifth of the signal is left, and of what one verdict says of an action
the rest is noise. Were it the number of verdicts that counts and not what they say, 40 % would still be better.
"""

from __future__ import annotations

import click
import noisy_offers
from claims import Claim, report
from process_vs_outcome import ARMS as REWARDS
from process_vs_outcome import MIXES
from study import UNGUARDED, Asked, Study, Words, study_options

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
COMMON: Words = (UNGUARDED, *MIXES["hard"].settings, "train.learning_rate=5e-4")


def words(share: float) -> Words:
    """The settings of a coach that is wrong so often."""
    return "coach.use=noisy", f"coach.options={{coach: {{use: mathchat-rules}}, share: {share:g}}}"


ARMS: dict[str, Words] = {
    **{f"process, {share:.0%} wrong": (*COMMON, *words(share)) for share in SHARES},
    "outcome": (*COMMON, *REWARDS["outcome"]),
}
CLAIMS = (
    *(Claim(one=f"process, {share:.0%} wrong", other="outcome", expected="better") for share in (0.1, 0.2)),
    Claim(one="process, 40% wrong", other="outcome", expected="worse"),
)


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="noisy_coach", asked=asked, offers={"noisy": noisy_offers})
    report(study, study.train(ARMS, asked.seeds), CLAIMS)


if __name__ == "__main__":
    main()
