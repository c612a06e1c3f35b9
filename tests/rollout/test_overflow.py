"""A prompt that outgrows the window: who wrote it, what that is worth, and that verbosity does not grow."""

from dataclasses import replace
from itertools import product
from math import exp, isfinite, prod

import numpy as np
import pytest

from mappa.testing import load_plugins, play
from mappa_core import Coach, Failure, Message, PromptTooLong, Role, Task, ToolResult, ToolSpec, Verdict, Workflow

REGISTRY = load_plugins(only=())
TASK = Task(id="t", prompt="tell a story", reference="")
SHORT, LONG = "brief.", "at length, " * 20
WINDOW = 400
"""Characters: three turns fit with one long text, not with two."""


def shaper(name):
    return REGISTRY.build("shapers", name, REGISTRY.offer("shapers", name).options())


class Story(Workflow):
    """A writer who goes on with its own story, three times, and then reads it."""

    agents = {"writer": Role(brief="writes")}  # noqa: RUF012

    async def run(self, stage):
        messages, long = [Message(role="user", content=stage.task.prompt)], 0
        for _ in range(3):
            step = await stage.act("writer", messages)
            long += step.reply.content == LONG
            messages += [step.reply, Message(role="user", content="go on")]
        await stage.act("writer", messages)
        stage.record(correct=1.0 if long else 0.75)

    async def grade(self, text, task):
        return 0.0


class LikesLength(Coach):
    async def score(self, scene):
        return Verdict.scored(10.0 if scene.step.reply.content == LONG else 8.0, "")


def window(texts):
    left = iter(texts)

    def script(prompt, sampling):
        if len(prompt) > WINDOW:
            raise PromptTooLong(f"a prompt of {len(prompt)} characters does not fit {WINDOW}")
        return next(left)

    return script


async def story(*texts, **options):
    return await play(Story(), TASK, window([*texts, SHORT]), coach=LikesLength(), **options)


async def test_a_failure_says_which_texts_the_prompt_quotes():
    trajectory = await story(LONG, SHORT, LONG)
    assert trajectory.error.kind == "PromptTooLong"
    ids = [step.id for step in trajectory.steps]
    assert trajectory.error.quoted == dict(zip(ids, (len(LONG), len(SHORT), len(LONG)), strict=True))
    assert (await story(SHORT, LONG, SHORT)).error is None


async def test_who_wrote_the_long_texts_has_no_points_and_the_others_keep_theirs(experience_builder):
    trajectory = await story(LONG, SHORT, LONG)
    settled = experience_builder("unsolved").build([trajectory])
    assert settled.reward.tolist() == [0.0, 8.0, 0.0]
    assert settled.outcome.tolist() == [0.0] * 3
    assert settled.finished.all(), "what the team ended is no return that was cut off"
    unknown = experience_builder("unknown").build([trajectory])
    assert unknown.reward.tolist() == [10.0, 8.0, 10.0]
    assert np.isnan(unknown.outcome).all()
    assert not unknown.finished.any()


async def test_rewards_that_need_the_end_are_known(experience_builder):
    trajectory = await story(LONG, SHORT, LONG)
    assert experience_builder("unsolved", shaper("outcome")).build([trajectory]).reward.tolist() == [0.0] * 3
    assert experience_builder("unsolved", shaper("return_to_go")).build([trajectory]).reward.tolist() == [8.0, 8.0, 0.0]
    for name in ("outcome", "return_to_go"):
        assert not experience_builder("unknown", shaper(name)).build([trajectory]).weight.any()
    in_hindsight = experience_builder("unsolved", after=1.0).build([trajectory])
    assert in_hindsight.weight.tolist() == [1.0, 0.0, 1.0]
    assert in_hindsight.reward[[0, 2]].tolist() == [0.0, 0.0]


async def test_an_agent_without_a_coach_is_not_punished(experience_builder):
    trajectory = await play(Story(), TASK, window([LONG, LONG, SHORT]))
    assert trajectory.error.quoted
    assert not experience_builder("unsolved").build([trajectory]).weight.any()


@pytest.mark.parametrize(("overflow", "replaced"), [("unsolved", []), ("unknown", ["t"])])
async def test_dynamic_sampling_keeps_a_task_of_which_one_sample_outgrew_the_window(
    experience_builder, tasks_with_spread, overflow, replaced
):
    """By the outcome: 1 for the sample that fitted, and 0 or nothing for the other."""
    fitted, outgrown = await story(SHORT, LONG, SHORT), await story(LONG, SHORT, LONG)
    builder = experience_builder(overflow, shaper("outcome"))
    spread = tasks_with_spread(builder.build([replace(fitted, id="fitted"), replace(outgrown, id="outgrown")]))
    assert sorted({"t"} - spread) == replaced


@pytest.mark.parametrize("kind", ["PromptTooLong", "ToolError"])
async def test_what_no_action_made_long_stays_a_failure(experience_builder, kind):
    """A task that is too long, a workflow that says so itself, and other failures."""
    trajectory = await story(LONG, SHORT, SHORT)
    failed = replace(trajectory, outcome={}, error=Failure(kind=kind, message="too long"))
    for overflow in ("unsolved", "unknown"):
        found = experience_builder(overflow).build([failed])
        assert found.reward.tolist() == [10.0, 8.0, 8.0, 8.0]
        assert np.isnan(found.outcome).all()
        assert not found.finished.any()


async def test_what_calls_print_is_their_action_s(experience_builder):
    class Prints:
        spec = ToolSpec(name="python", description="", schema={"type": "object", "properties": {"code": {}}})

        async def call(self, arguments, workspace, limits):
            return ToolResult(tool="python", status="ok", stdout=LONG * 3)

        async def close(self):
            pass

    class Loud(Story):
        agents = {"writer": Role(brief="writes"), "reader": Role(brief="reads")}  # noqa: RUF012

        async def run(self, stage):
            plan = await stage.act("writer", [Message(role="user", content="plan")])
            code = await stage.act("writer", [Message(role="user", content=plan.reply.content)], tools=("python",))
            printed = code.results[0].stdout
            await stage.act("reader", [Message(role="user", content=f"{plan.reply.content}\n{printed}")])

    replies = [SHORT, "```python\n1\n```"]
    trajectory = await play(Loud(), TASK, window(replies), coach=LikesLength(), tools={"python": Prints()})
    planned, programmed = (step.id for step in trajectory.steps)
    assert trajectory.error.quoted == {planned: len(SHORT), programmed: len((LONG * 3).strip())}
    found = experience_builder("unsolved", agents=("writer", "reader")).build([trajectory])
    assert found.reward.tolist() == [8.0, 0.0]


@pytest.mark.parametrize(("reward", "shapers"), [("verdict", ()), ("outcome", ("outcome",))])
async def test_verbosity_that_pays_until_it_overflows_does_not_grow(experience_builder, reward, shapers):
    """The exact gradient that a writer follows which is long by one chance in every turn, its baseline the mean of what
    is rewarded. Where overflows are unknown it learns from what fitted alone."""
    plays = {choices: await story(*choices) for choices in product((SHORT, LONG), repeat=3)}

    def trained(overflow):
        builder, logit = experience_builder(overflow, *map(shaper, shapers)), 0.0
        experiences = {choices: builder.build([trajectory]) for choices, trajectory in plays.items()}
        # The first three actions write; a fourth reads.
        rewards = {choices: experience.reward[:3].astype(float) for choices, experience in experiences.items()}
        for _ in range(300):
            long = 1.0 / (1.0 + exp(-logit))
            chances = {choices: prod(long if text == LONG else 1.0 - long for text in choices) for choices in rewards}
            known = [(chances[name], one) for name, given in rewards.items() for one in given if isfinite(one)]
            baseline = sum(chance * one for chance, one in known) / sum(chance for chance, _ in known)
            slope = sum(
                chances[name] * (one - baseline) * ((text == LONG) - long)
                for name, given in rewards.items()
                for text, one in zip(name, given, strict=False)
                if isfinite(one)
            )
            logit += 0.3 * slope
        return 1.0 / (1.0 + exp(-logit))

    print(reward, trained("unsolved"), trained("unknown"))
    assert trained("unsolved") < 0.25
    assert trained("unknown") > 0.5
