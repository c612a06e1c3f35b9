"""Feedback and blame, by hand."""

from mappa_core import Breach, Completion, Failure, Message, Step, Task, Trajectory, Verdict
from mappa_gepa.agent_choice import BlameChoice
from mappa_gepa.feedback import blame_points, outcome_feedback, own_feedback


def played(*actions: tuple[str, float | None, str | None], breaches=(), error=None) -> Trajectory:
    """A trajectory of (agent, score, blame); no score: the coach failed."""
    steps, verdicts = [], []
    for place, (agent, score, blame) in enumerate(actions):
        message = Message(role="user", content=f"input {place}")
        own = tuple(breach for breach in breaches if breach.agent == agent)
        reply = Message(role="assistant", content=f"action {place}")
        said = Completion(text=reply.content, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
        step = Step(
            id=f"s{place}", agent=agent, turn=0, position=place, policy=agent, messages=(message,), reply=reply,
            completion=said, breaches=own,
        )  # fmt: skip
        steps.append(step)
        if score is None:
            verdicts.append(Verdict(status="failed", error="down", step=f"s{place}"))
        else:
            verdicts.append(
                Verdict(status="scored", score=score, reasoning=f"why {place}", blame=blame, step=f"s{place}")
            )
    outcome = {} if error else {"correct": 0.0}
    return Trajectory(
        id="t", task=Task(id="t", prompt="p"), sample=0, iteration=0, steps=tuple(steps), verdicts=tuple(verdicts),
        outcome=outcome, error=error,
    )  # fmt: skip


def test_points_lost_in_a_verdict_count_against_the_blamed_agent():
    one = played(
        ("a", 4, None), ("b", 1, "a"), ("c", 3, "nobody"), ("b", 8, "b"), ("c", None, None), ("c", 0, "stranger")
    )
    assert blame_points([one], ["a", "b", "c"]) == {"a": 6 + 9, "b": 2, "c": 0}


def test_an_agent_learns_from_its_own_actions_alone():
    one = played(("a", 4, None), ("b", 1, "a"), ("b", 6, "nobody"), ("b", 2, "b"), ("b", None, None))
    found = own_feedback([one], "b", hide_reasons=False)
    assert [feedback.verdict for feedback in found] == ["2 of 10 points. why 3", "6 of 10 points. why 2"]
    assert [feedback.input for feedback in found] == ["input 3", "input 2"]


def test_an_agent_that_was_handed_something_broken_learns_nothing_from_it():
    handed = Breach(agent="b", kind="broken_input", path="x.csv")
    left = Breach(agent="a", kind="broken_output", path="x.csv")
    one = played(("a", 2, None), ("b", 2, None), breaches=(handed, left))
    assert own_feedback([one], "b", hide_reasons=False) == []
    assert len(own_feedback([one], "a", hide_reasons=False)) == 1


def test_reasons_of_a_coach_that_saw_the_truth_are_withheld():
    (feedback,) = own_feedback([played(("a", 4, None))], "a", hide_reasons=True)
    assert feedback.verdict == "4 of 10 points."


def test_feedback_without_verdicts_names_the_outcome():
    lost = Failure(kind="PromptTooLong", message="…")
    found = outcome_feedback([played(("a", 4, None)), played(("a", 4, None), error=lost)], "a", "correct")
    assert [feedback.verdict for feedback in found] == [
        "The team's result on this task: correct 0.", "The team did not finish this task: PromptTooLong.",
    ]  # fmt: skip


def test_the_agent_with_most_blame_is_next_and_each_try_divides_its_blame():
    choose = BlameChoice(["a", "b"])
    samples = [(played(("a", 4, None), ("b", 8, None)),)]
    turns = [choose(None, samples, [0.0], 0, {}) for _ in range(5)]
    assert turns == [["a"], ["a"], ["a"], ["b"], ["a"]]  # 6, 3, 2 against 2, which is the later one; then 1 of b
    assert choose(None, samples, [0.0], 1, {}) == ["a"], "another candidate is counted on its own"


def test_no_agent_is_next_without_blame():
    assert BlameChoice(["a"])(None, [(played(("a", 10, None)),)], [1.0], 0, {}) == []
