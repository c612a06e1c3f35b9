"""Teachers on servers: what is asked of them, whose scores are whose, what goes wrong, and a run that learns so."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.testing import WireAnswer, WireServer, json_answer
from mappa_core import ConfigError
from mappa_core.engine import EngineLost, PolicySpec
from mappa_engine import teacher_servers
from mappa_engine.cluster.engine import ClusterEngine
from mappa_engine.local import LocalEngine
from mappa_engine.options import ClusterOptions, LocalOptions, TeacherServer
from mappa_engine.teacher_servers import TeacherServers

KEY = "sk-of-the-teacher"
TINY = "package:mappa_mathchat/models/tiny"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(teacher_servers, "WAIT_S", 0.0)
    monkeypatch.setenv("TEACHER_KEY", KEY)


def echo(request):
    """Find each token less likely by a thousandth of a nat for its id and for its place."""
    tokens = request.body["prompt"]
    logprobs = [None, *(-(token + place) / 1000 for place, token in enumerate(tokens[1:], 1))]
    return json_answer({"choices": [{"logprobs": {"token_logprobs": logprobs}}]})


async def scored(url, experience, folder, *, learning=False, **settings):
    teachers = TeacherServers({"mentor": TeacherServer(base_url=f"{url}/v1", **settings)})
    await teachers.open([PolicySpec(name="mentor", model=folder, kind="frozen")], learning=learning)
    try:
        return (await teachers.score(experience)).old_logprobs
    finally:
        await teachers.close()


@pytest.fixture
def experience(kit):
    return kit.experience(kit.rows(12, policy="mentor"), policies=("mentor",))


async def test_scores_belong_to_their_tokens(experience, qwen3):
    async with WireServer(echo) as server:
        found = await scored(server.url, experience, qwen3, model="big", api_key_env="TEACHER_KEY", concurrency=3)
    expected = [
        -(token + place) / 1000
        for row in range(12)
        for place, token in enumerate(
            experience.tokens[slice(*experience.offsets[row : row + 2])].tolist(),
            int(experience.prompt_offsets[row + 1] - experience.prompt_offsets[row]),
        )
    ]
    assert found.dtype == np.float32 and found.tolist() == pytest.approx(expected)
    asked = server.requests[0]
    assert (asked.path, asked.headers["authorization"]) == ("/v1/completions", f"Bearer {KEY}")
    assert asked.body | {"prompt": []} == {"model": "big", "prompt": [], "echo": True, "logprobs": 0, "max_tokens": 0}


async def test_busy_server_is_retried(experience, qwen3):
    turned_away = []

    def busy(request):
        if len(turned_away) < 5:
            turned_away.append(request)
            return WireAnswer(status=(429, 503, 500, 429, 503)[len(turned_away) - 1], trouble=None)
        return echo(request)

    async with WireServer(busy) as server:
        found = await scored(server.url, experience, qwen3, concurrency=1)
    assert len(server.requests) == 12 + 5 and np.isfinite(found).all()


@pytest.mark.parametrize(
    ("answer", "asked", "says"),
    [
        (json_answer({"error": {"message": f"no such key {KEY}"}}, status=401), 1, r"key: .*\[TEACHER_KEY\]"),
        (json_answer({"error": {"message": "8192 tokens at most"}}, status=400), 1, "request: .*8192 tokens at most"),
        (json_answer({"choices": [{"logprobs": {"token_logprobs": [-1.0]}}]}), 1, "the server does not echo"),
        (json_answer({"choices": [{"text": "a", "logprobs": None}]}), 6, "without token_logprobs"),
        (WireAnswer(trouble="drop"), 6, "connection: "),
        (WireAnswer(body=b'{"so": "far"}' * 5000, trouble="endless"), 6, "garbled: the reply has more than"),
    ],
)
async def test_server_without_scores_is_an_error_without_the_key(experience, qwen3, answer, asked, says):
    for learning, error in ((False, ConfigError if asked == 1 else EngineLost), (True, ConfigError)):
        async with WireServer(lambda request: answer) as server:
            with pytest.raises(error, match=says) as caught:
                await scored(server.url, experience, qwen3, learning=learning, api_key_env="TEACHER_KEY", concurrency=1)
        assert len(server.requests) == asked and KEY not in str(caught.value)


async def test_a_cut_distribution_is_refused(experience, qwen3):
    cut = replace(experience, mask_tokens=np.zeros(0, np.int32), mask_offsets=np.zeros(1, np.int64))
    warm = replace(experience, temperature=np.full(12, 0.7, np.float32))
    for rows in (cut, warm):
        with pytest.raises(ConfigError, match=r"mentor: a server scores at temperature 1 .* top_p=1 and top_k=0"):
            await scored("http://localhost:1", rows, qwen3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"base_url": "gpu-box:8000"}, r"teachers.mentor: base_url: must be http"),
        ({"base_url": "http://gpu-box/v1", "concurrency": 0}, "must be above 0"),
        (
            {"base_url": "http://gpu-box/v1", "api_key_env": "NOT_SET"},
            "NOT_SET is not set or empty: the teacher mentor",
        ),
    ],
)
def test_invalid_teachers_are_refused(settings, says):
    for engine, options in ((LocalEngine, LocalOptions), (ClusterEngine, ClusterOptions)):
        with pytest.raises(ConfigError, match=says):
            engine(options(teachers={"mentor": TeacherServer(**settings)}))


def test_teacher_on_a_server_is_not_loaded():
    options = {"teachers": {"mentor": TeacherServer(base_url="http://gpu-box/v1")}}
    mentor, solver = PolicySpec(name="mentor", model="org/nowhere-70b", kind="frozen"), PolicySpec(name="s", model=TINY)
    cluster, local = ClusterEngine(ClusterOptions(**options)), LocalEngine(LocalOptions(device="cpu", **options))
    assert cluster.can_score(mentor) and not cluster.can_score(replace(mentor, name="other"))
    assert local.plan([solver, mentor], None, rows=1, machines=()) == local.plan([solver], None, rows=1, machines=())
    with pytest.raises(
        ConfigError, match=r"the policy is full, and what is on a server is not trained: set policies\."
    ):
        cluster.plan([solver, replace(mentor, kind="full")], None, rows=1, machines=())


async def test_server_without_a_policy_is_refused():
    teachers = TeacherServers({"mentr": TeacherServer(base_url="http://gpu-box/v1")})
    solver = PolicySpec(name="solver", model=TINY)
    with pytest.raises(ConfigError, match=r"teachers\.mentr: no policy of this name .* one of solver here"):
        await teachers.open([solver], learning=True)
    await teachers.open([solver], learning=False)


async def test_run_learns_from_a_teacher_on_a_server(tmp_path):
    """The teacher finds every token equally likely, so that the gap is -1 less what the policy thinks of it."""

    def indifferent(request):
        return json_answer(
            {"choices": [{"logprobs": {"token_logprobs": [None, *[-1.0] * (len(request.body["prompt"]) - 1)]}}]}
        )

    words = [
        f"run.root={tmp_path}", "train.iterations=1", "train.prompts=2", "eval.problems=2", "eval.samples=1",
        f"policies.mentor={{kind: frozen, model: {TINY}}}",
        "estimator={use: distill, options: {reason: false, policy: mentor}}",
    ]  # fmt: skip
    async with WireServer(indifferent) as server:
        words.append(f"engine.options.teachers.mentor={json.dumps({'base_url': server.url + '/v1'})}")
        trained = await asyncio.to_thread(Run.from_recipe("mathchat/tiny", *words).train)
    with RunReader(trained.folder) as reader:
        metrics = next(iter(reader.iterations)).policies
        steps = [step for row in reader.trajectories.where(split="train") for step in reader.trajectory(row.id).steps]
    (_first, *scored_rows) = server.requests
    assert (
        len(scored_rows) == sum(metrics_of_agent["teacher_rows"] for metrics_of_agent in metrics.values()) == len(steps)
    )
    own = np.concatenate([step.completion.logprobs for step in steps])
    taught = {name: metrics_of_agent for name, metrics_of_agent in metrics.items() if "teacher_kl" in metrics_of_agent}
    weights = [sum(len(step.completion.tokens) for step in steps if step.policy == name) for name in taught]
    gap = np.average([metrics_of_agent["teacher_kl"] for metrics_of_agent in taught.values()], weights=weights)
    assert gap == pytest.approx(float(own.mean()) + 1.0, abs=1e-3)
    assert {request.body["model"] for request in server.requests} == {TINY}
