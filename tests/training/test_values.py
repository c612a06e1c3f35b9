"""What cannot be learned from is refused before anything is played: values without a head, greedy or cut actions."""

from __future__ import annotations

import pytest

from mappa.training import Run
from mappa_core import ConfigError


@pytest.fixture
def train(registry, tmp_path):
    def run(*settings):
        return Run.from_recipe("doubles/tiny", f"run.root={tmp_path / 'runs'}", *settings, registry=registry).train()

    return run


def test_gae_without_a_value_head_is_refused(train, tmp_path) -> None:
    with pytest.raises(ConfigError) as caught:
        train("estimator.use=gae")
    assert str(caught.value) == (
        "estimator.use=gae needs values, and the policy 'doubler' of agent 'doubler' has no value head; set "
        "policies.default.value_head=true, or choose an estimator that needs none"
    )
    assert not (tmp_path / "runs").exists()


def test_only_policies_of_an_estimator_of_values_need_a_value_head(train) -> None:
    own = "policies.checker={model: none}"
    with pytest.raises(
        ConfigError, match=r"estimator\.by_agent\.checker\.use=gae .* set policies\.checker\.value_head"
    ):
        train("estimator.by_agent={checker: {use: gae}}", own)
    with pytest.raises(ConfigError, match=r"policy 'doubler' of agent 'doubler' .* set policies\.default\.value_head"):
        train("estimator.use=gae", "policies.checker={model: none, value_head: true}")


SIBLINGS = ("rloo", "grpo", "dr_grpo", "reinforce_plus_plus_baseline", "gigpo", "gdpo", "maxrl")


@pytest.mark.parametrize(
    ("key", "estimator"),
    [
        *(("estimator", f"estimator={{use: {use}, options: {{}}}}") for use in SIBLINGS),
        ("estimator", "estimator={use: grpo, options: {groups: episode}}"),
        ("estimator.by_agent.checker", "estimator.by_agent={checker: {use: rloo, options: {groups: state}}}"),
        (
            "estimator.by_agent.checker.options.rewards",
            "estimator.by_agent={checker: {use: distill, options: {weight: 0.5, rewards: {use: maxrl}}}}",
        ),
    ],
)
def test_an_estimator_that_compares_samples_is_refused_where_a_task_has_one(train, tmp_path, key, estimator) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}\.use=\w+ compares the samples of a task, and train\.samples=1 "):
        train("train.samples=1", estimator)
    assert not (tmp_path / "runs").exists()


def test_every_estimator_that_looks_at_other_samples_is_marked_as_such(registry) -> None:
    marked = {use for use in registry.names("estimators") if registry.offer("estimators", use).siblings}
    assert marked == set(SIBLINGS)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "coach.reward={live: 1}",
            r"'after', and none are given; set a coach at coach\.hindsight\.use and coach\.reward",
        ),
        (
            "coach={reward: {live: 0, after: 1}, hindsight: {use: strict}}",
            "'live', and none are given; set coach.reward.live=1",
        ),
    ],
)
def test_verdicts_that_nobody_gives_are_not_read(train, tmp_path, setting, said) -> None:
    with pytest.raises(ConfigError, match=rf"^estimator\.use=gdpo reads verdicts of the phase {said}"):
        train("estimator={use: gdpo, options: {}}", setting)
    assert not (tmp_path / "runs").exists()


def test_values_of_the_rewards_of_a_teacher_need_a_head_as_well(train, tmp_path) -> None:
    options = "{weight: 0.5, rewards: {use: gae}}"
    with pytest.raises(ConfigError, match=r"^estimator\.options\.rewards\.use=gae needs values"):
        train("coach.reference_for=[]", f"estimator={{use: distill, options: {options}}}")
    assert not (tmp_path / "runs").exists()


def test_an_estimator_of_an_agent_that_is_not_trained_is_refused(train, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"^estimator\.by_agent\.checker: the policy 'checker' .* is not trained"):
        train("policies.checker={model: none, kind: frozen}", "estimator.by_agent={checker: {use: rloo}}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", ["sampling.temperature", "agents.doubler.temperature"])
def test_greedy_actions_of_a_trained_policy_are_refused(train, tmp_path, key) -> None:
    with pytest.raises(ConfigError, match=rf"{key}=0: agent 'doubler' is trained.*eval\.temperature may be 0"):
        train(f"{key}=0")
    assert not (tmp_path / "runs").exists()


def test_trained_agent_with_top_k_1_is_refused(train, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"sampling\.top_k=1: agent 'doubler' is trained, and greedy actions"):
        train("sampling.top_k=1")
    assert not (tmp_path / "runs").exists()


def test_untrained_policy_may_sample_greedily(train) -> None:
    with pytest.raises(ConfigError, match="agent 'checker' is trained"):
        train("sampling.temperature=0", "policies.doubler={model: none, kind: frozen}")


def test_a_run_in_which_no_policy_is_trained_is_refused(train, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"^policies: .*none is trained.*policies\.default\.kind=full.*mappa eval"):
        train("policies.default.kind=frozen")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("cut", ["sampling.top_p=0.9", "sampling.top_k=5"])
def test_truncated_distribution_is_refused_for_an_engine_without_sampling_masks(train, cut) -> None:
    with pytest.raises(ConfigError, match=r"this engine does not say which tokens they left.*set sampling\.top_p=1"):
        train(cut)


def test_checkpoints_that_round_weights_are_refused_where_what_was_sampled_is_sampled_again(train, tmp_path) -> None:
    """Of rounded weights no resume gives the tokens that were recorded after the checkpoint: all of them would end in
    an error. Adapters are not rounded."""
    with pytest.raises(ConfigError, match=r"checkpoint\.dtype=bfloat16: .* set checkpoint\.dtype=float32, or "):
        train("checkpoint.dtype=bfloat16")
    assert not (tmp_path / "runs").exists()
    assert train("checkpoint.dtype=bfloat16", "policies.default.kind=lora", "train.iterations=1").folder.exists()


@pytest.mark.parametrize("name", ["../x", "/tmp/x", ".", "a//b"])
def test_a_policy_whose_name_leads_out_of_its_checkpoint_is_refused(train, tmp_path, name) -> None:
    """It names a folder there: its weights would lie elsewhere, and the checkpoint could not be read again."""
    with pytest.raises(ConfigError, match=rf"policies: '{name}' .*agents\.NAME\.policy"):
        train(f"agents.checker.policy={name}")
    assert not (tmp_path / "runs").exists()
