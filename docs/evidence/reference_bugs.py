"""What do two bugs cost that public code has: a wrong prompt from the second turn on, and whitening done twice?

Both are made again in `bug_offers.py`, and nowhere else. `wrong prompt`: an agent's later actions are learned under a
prompt that holds what the agent said before and nothing else, while they were sampled after the whole conversation.
`whitened twice, N ranks`: returns are whitened within each rank's share of an iteration, then over all. `right`: the
recipe.

Claimed beforehand. `wrong prompt` makes no significant difference here: only the second action of one agent is hit,
a third of the rollouts has one at first, and hardly any once programs run. `whitened twice` on 2 ranks makes none
either, since halves of an iteration have nearly equal means; on 8 ranks, with four rollouts each, it is worse. Where
later actions matter more (agents of four turns) the first claim says nothing.
"""

from __future__ import annotations

import bug_offers
import click
from claims import Claim, report
from study import Asked, Study, Words, study_options

ARMS: dict[str, Words] = {
    "right": (),
    "wrong prompt": ("engine.use=wrong_prompt",),
    "whitened twice, 2 ranks": ("estimator.use=whitened_twice", "estimator.options.ranks=2"),
    "whitened twice, 8 ranks": ("estimator.use=whitened_twice", "estimator.options.ranks=8"),
}
CLAIMS = (
    Claim(one="wrong prompt", other="right", expected="no significant difference"),
    Claim(one="whitened twice, 2 ranks", other="right", expected="no significant difference"),
    Claim(one="whitened twice, 8 ranks", other="right", expected="worse"),
)


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="reference_bugs", asked=asked, offers={"bugs": bug_offers})
    report(study, study.train(ARMS, asked.seeds), CLAIMS)


if __name__ == "__main__":
    main()
