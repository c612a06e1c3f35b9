"""The standard decision processes on which estimators are tested. All their numbers are dyadic fractions."""

from __future__ import annotations

from mappa.look.conformance.decision_process import Action, Decision, DecisionProcess, Tokens

SEPARATE_POLICIES = {"solver": "solver", "checker": "checker"}
SHARED_POLICY = {"solver": "team", "checker": "team"}


def _two(
    agent: str, prompt: Tokens, first: float, then: tuple[Decision | float, Decision | float], missing: float = 0.0
) -> Decision:
    """Build a decision with two actions of one token."""
    return Decision(
        agent=agent,
        prompt=prompt,
        actions=(
            Action(tokens=(5,), chances=(first,), points=1.0, then=then[0], missing=missing),
            Action(tokens=(6,), chances=(1.0 - first,), points=4.0, then=then[1], missing=missing),
        ),
    )


def _three(
    agent: str,
    prompt: Tokens,
    points: tuple[float, float, float],
    then: tuple[Decision | float, Decision | float, Decision | float],
    missing: float = 0.0,
) -> Decision:
    """Build a decision with an action of one token, and two of two tokens that share their first; one is truncated."""
    tokens = ((9,), (10, 11), (10, 12))
    chances = ((0.25,), (0.75, 0.5), (0.75, 0.5))
    return Decision(
        agent=agent,
        prompt=prompt,
        actions=tuple(
            Action(
                tokens=action, chances=chance, points=worth, then=after, missing=missing, truncated=action == (10, 11)
            )
            for action, chance, worth, after in zip(tokens, chances, points, then, strict=True)
        ),
    )


def _one_decision(task: int, missing: float = 0.0) -> Decision:
    return _three("solver", (1, task), ((8.0, 2.0, 5.0), (0.0, 10.0, 3.0))[task], (0.0, 1.0, 0.5), missing)


def _team(*, always: bool) -> Decision:
    """Build solver, checker, and solver again: `always`, or after one of its first actions and some of the
    checker's."""

    def again(read: Tokens, outcome: float) -> Decision:
        return _two("solver", (*read, 1), 0.5, (outcome, 1.0 - outcome))

    def after(read: Tokens, outcome: float, repeats: bool) -> Decision | float:
        return again(read, outcome) if always or repeats else outcome

    read = (1, 5, 2)
    ends = after((*read, 9), 0.0, False), after((*read, 10, 11), 1.0, True), after((*read, 10, 12), 0.25, True)
    after_five = _three("checker", read, (7.0, 0.0, 3.0), ends)
    read = (1, 6, 2)
    after_six = _two("checker", read, 0.75, (after((*read, 5), 0.5, False), after((*read, 6), 1.0, False)))
    return _two("solver", (1,), 0.25, (after_five, after_six))


def _blind() -> Decision:
    """Build a team whose checker does not see the solver's action, and whose solver's second turn has the checker's
    prompt: with one policy they share a table."""

    def again(outcome: float) -> Decision:
        return _three("solver", (2,), (9.0, 1.0, 4.0), (outcome, 0.0, 1.0))

    def check(outcome: float) -> Decision:
        return _three("checker", (2,), (3.0, 8.0, 0.0), (outcome, again(1.0 - outcome), 0.25))

    return _two("solver", (1,), 0.25, (check(0.0), check(1.0)))


def _stopping() -> Decision:
    """Build an agent that ends its task in its first, second or third turn as it likes. Going on is worth as much as
    ending, in verdicts to come and in outcome, so neither gradient moves its first choice."""
    third = Decision(
        agent="solver",
        prompt=(1, 6, 2, 6, 2),
        actions=(
            Action(tokens=(5,), chances=(0.5,), points=3.0, then=1.0),
            Action(tokens=(6,), chances=(0.5,), points=1.0, then=0.0),
        ),
    )
    second = Decision(
        agent="solver",
        prompt=(1, 6, 2),
        actions=(
            Action(tokens=(6,), chances=(0.5,), points=2.0, then=third),
            Action(tokens=(7, 8), chances=(0.5, 0.5), points=6.0, then=1.0),
            Action(tokens=(7, 9), chances=(0.5, 0.5), points=2.0, then=0.0),
        ),
    )
    return Decision(
        agent="solver",
        prompt=(1,),
        actions=(
            Action(tokens=(5,), chances=(0.5,), points=6.0, then=0.5),
            Action(tokens=(6,), chances=(0.5,), points=2.0, then=second),
        ),
    )


def _two_judged() -> Decision:
    """Build solver, then checker, each with verdicts that are missing independently of the action."""
    after_five = _two("checker", (1, 5, 2), 0.75, (0.0, 1.0), missing=0.25)
    after_six = _two("checker", (1, 6, 2), 0.5, (1.0, 0.5), missing=0.25)
    return _two("solver", (1,), 0.25, (after_five, after_six), missing=0.5)


ONE_DECISION = DecisionProcess(
    name="one decision, two tasks", tasks=(_one_decision(0), _one_decision(1)), policies={"solver": "solver"}
)
TRIPLE = DecisionProcess(
    name="one decision, three siblings", tasks=(_one_decision(0),), policies={"solver": "solver"}, samples=3
)
FIXED_TURNS = DecisionProcess(name="three turns", tasks=(_team(always=True),), policies=SEPARATE_POLICIES)
VARIABLE_TURNS = DecisionProcess(
    name="two or three turns", tasks=(_team(always=False),), policies=SEPARATE_POLICIES, samples=3
)
SHARED = DecisionProcess(name="one policy for both", tasks=(_blind(),), policies=SHARED_POLICY)
STOPPING = DecisionProcess(
    name="one to three turns of one agent", tasks=(_stopping(),), policies={"solver": "solver"}, samples=3
)
MISSING = DecisionProcess(name="verdicts missing", tasks=(_two_judged(),), policies=SEPARATE_POLICIES)
MISSING_OF_THREE = DecisionProcess(
    name="verdicts missing among three",
    tasks=(_one_decision(0, missing=0.25),),
    policies={"solver": "solver"},
    samples=3,
)

COMPLETE = (ONE_DECISION, TRIPLE, FIXED_TURNS, VARIABLE_TURNS, SHARED, STOPPING)
"""Processes without missing verdicts."""
INCOMPLETE = (MISSING, MISSING_OF_THREE)
"""Processes with missing verdicts, independent of the action."""
