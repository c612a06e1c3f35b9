from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mappa_core.records import Role, Scene, Step, Task, Verdict
from mappa_core.store import RunFolder
from mappa_core.store.verdicts import key


@pytest.fixture
def scene(task: Task, make_step: Callable[..., Step]) -> Scene:
    return Scene(task=task, role=Role(brief="solve"), step=make_step("t0", 1), earlier=(make_step("t0", 0),))


def test_a_verdict_is_found_by_what_its_coach_saw(
    run: RunFolder, scene: Scene, make_verdict: Callable[..., Verdict]
) -> None:
    verdict = make_verdict(raw_reply="{} " * 500)
    assert run.store.cache.get(key(scene, "gemini", "abc")) is None
    run.store.cache.put(key(scene, "gemini", "abc"), verdict)
    run.store.cache.put(key(scene, "gemini", "abc"), make_verdict(score=1.0))
    assert run.store.cache.get(key(scene, "gemini", "abc")) == verdict
    path = run.path
    run.close()
    with RunFolder.open(path) as again:
        assert again.store.cache.get(key(scene, "gemini", "abc")) == verdict


def test_a_failed_verdict_is_asked_for_again(run: RunFolder) -> None:
    run.store.cache.put("k", Verdict.failed("timeout"))
    assert run.store.cache.get("k") is None
    run.store.cache.put("k", Verdict.abstained("no evidence"))
    assert run.store.cache.get("k") == Verdict.abstained("no evidence")


def test_what_a_coach_does_not_see_changes_no_key(scene: Scene) -> None:
    step = scene.step
    slower = replace(
        step,
        completion=replace(step.completion, seconds=9.0, logprobs=np.zeros(200, np.float32), versions=()),
        results=tuple(replace(result, seconds=9.0) for result in step.results),
    )
    assert key(replace(scene, step=slower), "gemini", "abc") == key(scene, "gemini", "abc")


def test_all_that_a_coach_sees_changes_the_key(scene: Scene, make_step: Callable[..., Step]) -> None:
    step = scene.step
    others = [
        replace(scene, task=replace(scene.task, reference=None)),
        replace(scene, role=Role(brief="verify")),
        replace(scene, earlier=()),
        replace(scene, later=()),
        replace(scene, outcome={"correct": 1.0}),
        replace(scene, step=replace(step, id="t1/1")),
        replace(scene, step=replace(step, reply=replace(step.reply, content="other"))),
        replace(scene, step=replace(step, messages=())),
        replace(scene, step=replace(step, completion=replace(step.completion, finish="length"))),
        replace(scene, step=replace(step, results=(replace(step.results[0], stdout="8"),))),
    ]
    keys = {key(other, "gemini", "abc") for other in [scene, *others]}
    keys |= {key(scene, "openai", "abc"), key(scene, "gemini", "abd")}
    assert len(keys) == len(others) + 3
