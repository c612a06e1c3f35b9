"""What a teacher teaches: the exact gradient of a divergence, and which actions it reads with which prompts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from mappa.look.conformance import expected_gradient, policy_gradient, possible_batches
from mappa.look.conformance.batches import gradient_of
from mappa.look.conformance.standard_processes import ONE_DECISION, VARIABLE_TURNS
from mappa.testing import load_plugins
from mappa_core import Completion, ConfigError, Message, Step, Task, Trajectory, Use, Verdict
from mappa_core.engine import PolicySpec
from mappa_engine.cluster.engine import ClusterEngine
from mappa_engine.credit.distill import Distill, DistillOptions
from mappa_engine.local import LocalEngine
from mappa_engine.options import ClusterOptions, LocalOptions

REGISTRY = load_plugins(only=("engine", "sandbox"))


def taught_logits(process):
    """Logits of a teacher, another table for every context, in the order of the process's parameters."""
    return torch.linspace(-1.0, 1.5, len(process.parameters), dtype=torch.float64).cos() * 1.3


def tables(process, logits):
    """Log-probabilities by (policy, context, token)."""
    keys = [parameter[:2] for parameter in process.parameters]
    sums = {key: torch.logsumexp(logits[[place for place, each in enumerate(keys) if each == key]], 0) for key in keys}
    return {parameter: logits[place] - sums[parameter[:2]] for place, parameter in enumerate(process.parameters)}


def exact(process, discount):
    """The gradient of -KL(policy || teacher) of every action, by differentiation: of whole actions (discount 1), or of
    every next token with its context as likely as it is (0)."""
    own = torch.tensor(
        [np.log(process.tables[parameter[:2]][parameter[2]]) for parameter in process.parameters], requires_grad=True
    )
    policy, teacher = tables(process, own), tables(process, taught_logits(process))
    total = torch.zeros((), dtype=torch.float64)
    for visit in process.visits():
        name = process.policies[visit.decision.agent]
        for action in visit.decision.actions:
            keys = [(name, context, token) for context, token, _ in visit.decision.contexts(action)]
            gaps = [policy[key] - teacher[key] for key in keys]
            if discount == 1.0:
                total = total - visit.reach * torch.stack([policy[key] for key in keys]).sum().exp() * sum(gaps)
                continue
            for place, key in enumerate(keys):
                # The chance of the context is that of all actions that begin so, shared out among them.
                before = float(np.prod(action.chances[:place]))
                after = float(np.prod(action.chances[place + 1 :]))
                total = total - visit.reach * before * after * policy[key].exp() * gaps[place]
    total.backward()
    return own.grad.numpy() / len(process.tasks)


def with_teacher(process, experience):
    teacher, found = tables(process, taught_logits(process)), []
    for row in range(len(experience.reward)):
        context = tuple(experience.prompt_tokens[slice(*experience.prompt_offsets[row : row + 2])].tolist())
        for token in experience.tokens[slice(*experience.offsets[row : row + 2])].tolist():
            found.append(float(teacher[experience.policies[experience.policy[row]], context, token]))
            context += (token,)
    return replace(experience, teacher_logprobs=np.array(found, np.float32))


def expected(process, estimator):
    total = np.zeros(len(process.parameters))
    for batch in possible_batches(process):
        given, _ = estimator(with_teacher(process, batch.experience), {})
        total += batch.chance * gradient_of(process, batch, given.advantages.astype(np.float64), "trajectories")
    return total


@pytest.mark.parametrize("process", [ONE_DECISION, VARIABLE_TURNS], ids=lambda process: process.name)
@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_expected_gradient_is_that_of_the_divergence(process, discount):
    found = expected(process, Distill(DistillOptions(discount=discount), None))
    np.testing.assert_allclose(found, exact(process, discount), atol=1e-6)
    assert np.abs(found).max() > 0.01


def test_divergences_differ():
    assert np.abs(exact(ONE_DECISION, 0.0) - exact(ONE_DECISION, 1.0)).max() > 1e-3


def test_rewards_get_the_remaining_weight():
    options = DistillOptions(weight=0.25, rewards=Use(use="rloo"), discount=1.0)
    found = expected(ONE_DECISION, REGISTRY.build("estimators", "distill", resolved(options)))
    reward = expected_gradient(ONE_DECISION, REGISTRY.build("estimators", "rloo"))
    np.testing.assert_allclose(reward, policy_gradient(ONE_DECISION, "action"), atol=1e-6)
    np.testing.assert_allclose(found, 0.25 * exact(ONE_DECISION, 1.0) + 0.75 * reward, atol=1e-6)


def resolved(options):
    """As a composed config has it: the options of the part are an instance of its dataclass."""
    return replace(options, rewards=Use(use="rloo", options=REGISTRY.offer("estimators", "rloo").options()))


def test_rows_without_teacher_or_reward_have_no_advantage(kit):
    experience = kit.experience([*kit.rows(2), *kit.rows(1, seed=3, weight=0.0)])
    old = np.full(len(experience.tokens), -1.0, np.float32)
    teacher = np.where(experience.row_of_token == 0, np.nan, -0.5).astype(np.float32)
    given, state = Distill(DistillOptions(), None)(replace(experience, old_logprobs=old, teacher_logprobs=teacher), {})
    assert [given.advantages[experience.row_of_token == row].max() for row in range(3)] == [0.0, 0.5, 0.0]
    assert state == {}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"weight": 1.5}, "weight: must be from 0 to 1, not 1.5"),
        ({"discount": -1.0}, "discount: must be from 0 to 1"),
        ({"weight": 0.5}, "weight: below 1 .* set rewards.use"),
        ({"reason": False}, "policy: name the policy that teaches"),
        ({"template": "Try again."}, "template: must contain {reason}"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens: must be at least 1"),
    ],
)
def test_invalid_teacher_settings_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        DistillOptions(**settings).check()


# What the teacher reads. Prompts are rendered as the bytes of their roles and texts.


def render(policy, step, messages):
    text = "".join(f"<{message.role}>{message.content}" for message in messages)
    return np.frombuffer(f"{'other ' * (policy == 'other')}{text}".encode(), np.uint8).astype(np.int32)


@pytest.fixture
def played():
    """Experience of a batch of four actions."""
    return possible_batches(ONE_DECISION)[5].experience


def trajectories(experience, reasons):
    """Trajectories whose steps are the rows of `experience`, with a verdict of (points, reason) each."""
    found = []
    for row, (step, (points, reason)) in enumerate(zip(experience.steps, reasons, strict=True)):
        messages = (Message(role="user", content=f"task {row}"),)
        one = Step(
            id=step, agent="solver", turn=0, position=0, policy="solver", messages=messages,
            reply=Message(role="assistant", content=""),
            completion=Completion(
                text="", finish="stop", versions=(), prompt_tokens=render("solver", None, messages),
                tokens=np.array([5], np.int32), logprobs=np.zeros(1, np.float32),
            ),
        )  # fmt: skip
        verdict = Verdict.abstained(reason) if points is None else Verdict.scored(points, reason)
        found.append(
            Trajectory(
                id=f"t{row}",
                task=Task(id=f"k{row}", prompt=""),
                sample=0,
                iteration=0,
                steps=(one,),
                verdicts=(replace(verdict, id=f"v{row}", step=step, coach="a"),),
                outcome={},
            )
        )
    return found


def texts(view):
    ends = view.prompt_offsets
    return [bytes(view.prompt_tokens[start:end].astype(np.uint8)).decode() for start, end in pairwise(ends)]


REASONS = ((2.0, "forgot the tax"), (9.0, "right"), (0.0, " "), (None, "nothing to say"))


def view(experience, reasons=REASONS, **settings):
    options = DistillOptions(**({"template": " [{reason}]"} | settings))
    return Distill(options, None).teacher_view(experience, trajectories(experience, reasons), render)


def test_teacher_prompt_ends_with_the_reason(played):
    found = view(played)
    assert texts(found) == ["<user>task 0 [forgot the tax]", "<user>task 1 [right]"]
    assert found.steps == played.steps[:2]
    assert found.tokens.tolist() == played.tokens[: played.offsets[2]].tolist()
    assert texts(view(played, max_score=5.0)) == ["<user>task 0 [forgot the tax]"]
    assert texts(view(played, max_prompt_tokens=25)) == ["<user>task 1 [right]"]
    assert view(played, [(2.0, "")] * 4).steps == ()


def test_a_row_without_a_reward_has_no_teacher(played):
    weights = np.array([0.0, 1.0, 1.0, 1.0], np.float32)
    assert texts(view(replace(played, weight=weights))) == ["<user>task 1 [right]"]


def test_another_policy_can_teach(played):
    found = view(played, policy="mentor", reason=False)
    assert texts(found) == [f"<user>task {row}" for row in range(4)]
    assert (found.policies, found.policy.tolist()) == (("mentor",), [0] * 4)
    assert texts(view(played, policy="mentor"))[0] == "<user>task 0 [forgot the tax]"
    with pytest.raises(ConfigError, match="policy=other reads the prompt of solver as other tokens"):
        view(played, policy="other", reason=False)


def test_reasons_from_coaches_with_references_are_refused():
    teacher = Distill(DistillOptions(policy="mentor"), None)
    assert teacher.teacher_policy(("solver",), ("checker",)) == "mentor"
    with pytest.raises(ConfigError, match=r"the coach of solver sees the reference answer .* set truth=true"):
        teacher.teacher_policy(("solver",), ("solver",))
    for allowed in (DistillOptions(truth=True), DistillOptions(policy="mentor", reason=False)):
        Distill(allowed, None).teacher_policy(("solver",), ("solver",))


@pytest.mark.parametrize(("kind", "scored"), [("full", True), ("frozen", False)])
def test_only_trained_policies_teach_on_the_cluster(kind, scored):
    mentor = PolicySpec(name="mentor", model="8b", kind=kind)
    assert ClusterEngine(ClusterOptions()).can_score(mentor) is scored
    assert LocalEngine(LocalOptions(device="cpu")).can_score(mentor)
