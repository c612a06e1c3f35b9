"""Live against hindsight: what can a coach make up for by looking back, where it is not shown the truth?

With the truth at hand the rules say the same live and in hindsight, so there is nothing to compare. Without it a live
coach has to abstain on right plans and right boxes, which it cannot tell from wrong ones. In hindsight it knows whether
the team's answer was right, and much follows from that (`hindsight_offers.py`).

`live`: the rules without the truth, as the team plays. `hindsight`: the same without the truth, once the outcome is
known. `shown`: the rules with the truth, live, which is the recipe.

Claimed beforehand. `hindsight` is better than `live`, and no different from `shown`: the outcome is nearly as good as
the truth for telling whose fault a wrong answer was. Were looking back worth nothing, `hindsight` would be as `live`;
were the outcome not enough, it would fall behind `shown`.
"""

from __future__ import annotations

import click
import hindsight_offers
from claims import Claim, report
from study import UNGUARDED, Asked, Study, Words, study_options

BLIND = ("coach.reference_for=[]", UNGUARDED)
ARMS: dict[str, Words] = {
    "live": BLIND,
    "hindsight": (*BLIND, "coach.hindsight.use=looking_back", "coach.reward={live: 0, after: 1}"),
    "shown": (),
}
CLAIMS = (
    Claim(one="hindsight", other="live", expected="better"),
    Claim(one="hindsight", other="shown", expected="no significant difference"),
)


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="hindsight", asked=asked, offers={"looking_back": hindsight_offers})
    report(study, study.train(ARMS, asked.seeds), CLAIMS)


if __name__ == "__main__":
    main()
