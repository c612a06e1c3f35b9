"""What does it cost when a coach fails, and how it is dealt with? Failures on 5, 20 and 40 % of all actions.

`invented`: an action whose verdict failed gets 5.0 points, as if the coach had judged it so. `left out`: it has no
reward and carries no gradient, which is what Mappa does. `none`: a coach that never fails.

Claimed beforehand. A failure that is left out loses no more than its share of the data: at 5, 20 and 40 % there is no
significant difference to a coach that never fails. An invented score is noise that moves the policy: at 20 and 40 %
it does worse than leaving out at the same share. Were it not so, leaving out at 40 % would fall behind `none`, and
inventing would do as well as leaving out.
"""

from __future__ import annotations

import click
import failing_offers
from claims import Claim, report
from study import UNGUARDED, Asked, Study, Words, study_options

SHARES = (0.05, 0.2, 0.4)
INVENTED = 5.0


def words(share: float, invents: float | None) -> Words:
    """The settings of a coach that fails so often."""
    number = "null" if invents is None else f"{invents:g}"
    options = f"{{coach: {{use: mathchat-rules}}, share: {share:g}, invents: {number}}}"
    return "coach.use=failing", f"coach.options={options}", UNGUARDED


ARMS: dict[str, Words] = {
    "none": words(0.0, None),
    **{f"left out {share:.0%}": words(share, None) for share in SHARES},
    **{f"invented {share:.0%}": words(share, INVENTED) for share in SHARES},
}
CLAIMS = (
    *(Claim(one=f"left out {share:.0%}", other="none", expected="no significant difference") for share in SHARES),
    *(Claim(one=f"invented {share:.0%}", other=f"left out {share:.0%}", expected="worse") for share in SHARES[1:]),
)


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="failing_coach", asked=asked, offers={"failing": failing_offers})
    report(study, study.train(ARMS, asked.seeds), CLAIMS)


if __name__ == "__main__":
    main()
