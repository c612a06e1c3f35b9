"""A coach that is a model, held against labels of people: the real SDK asks a local server, from the command line."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading

import pytest

from mappa.cli import main
from mappa.testing import WireServer, json_answer

REASON = "canary-of-the-reason"
TRUTH = "canary-of-the-truth"
WRONG, NONSENSE = "print(2+3)", "unreadable"
PROMPT_TOKENS, COMPLETION_TOKENS = 1000, 100


def run(name, *said, guilty, step):
    history = [{"role": "assistant", "name": agent, "content": text} for agent, text in said]
    return {
        "source": f"{name}.json", "question": f"What is {name}?", "question_ID": name, "ground_truth": TRUTH,
        "is_correct": False, "history": history, "mistake_agent": guilty, "mistake_step": str(step),
        "mistake_reason": REASON,
    }  # fmt: skip


RUNS = (
    run("found", ("Planner", "add"), ("Coder", WRONG), ("Checker", "5"), guilty="Coder", step=1),
    run("missed", ("Planner", "subtract"), ("Coder", WRONG), ("Checker", "5"), guilty="Planner", step=0),
    run("unanswered", ("Planner", NONSENSE), ("Coder", "print(4)"), guilty="Planner", step=0),
)


def judge(request):
    """Answer as a model would that blames who wrote the wrong program."""
    shown = request.body["messages"][1]["content"]
    if "# The outline" in shown:
        return completion(json.dumps(_investigate(shown)))
    parts = re.split(r"^# Action (\d+), to judge: (\w+).*$", shown, flags=re.MULTILINE)[1:]
    actions = [
        {"action": int(number), "reasoning": "I computed it.", **_judgement(agent, text)}
        for number, agent, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]
    return completion("I cannot say." if NONSENSE in shown else json.dumps({"actions": actions}))


def completion(said):
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "total_tokens": 1100}
    choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    return json_answer({"model": "judge-1", "choices": [choice], "usage": usage})


def _investigate(shown):
    """Search for the wrong program, and quote it."""
    if "# What you asked for" not in shown:
        search = {"tool": "search", "texts": [WRONG], "first_step": 0, "last_step": None}
        return {"notes": "", "requests": [search], "answer": None}
    hit = re.search(rf"^\| step (\d+), line 1: {re.escape(WRONG)}$", shown, re.MULTILINE)
    steps = []
    if hit:
        quotes = [{"step": int(hit[1]), "text": WRONG}]
        steps = [{"step": int(hit[1]), "reason": "", "quotes": quotes, "score": 1}]
    answer = {"reason": "I searched.", "blame": "Coder" if hit else None, "category": None, "steps": steps}
    return {"notes": "", "requests": [], "answer": answer}


def _judgement(agent, text):
    wrote = text.split("## What it wrote")[1].split("## What its tools")[0]
    return {"blame": agent, "score": 1} if WRONG in wrote else {"blame": "nobody", "score": 9}


@pytest.fixture
def server(monkeypatch):
    """A server on a thread of its own, as the command has a loop of its own."""
    monkeypatch.setenv("OPENAI_API_KEY", "planted")
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    served = WireServer(judge)
    asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result()
    yield served
    asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def certify(server, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in RUNS))

    def command(*words, coach="openai"):
        options = ["model=judge-1", f"base_url={server.url}", "price={input: 1.0, output: 4.0}"]
        if coach == "openai":
            settings = [f"openai.{option}" for option in options]
        else:
            settings = ["model.use=openai", *(f"model.options.{option}" for option in options)]
        asked = ["coach", "eval", "--on", "who-and-when", "--data", str(data), "--coach", coach, *settings]
        # Two of eight verdicts of a coach that is asked for each action fail: more than a tenth.
        assert main([*asked, *words, "--quiet"]) == (3 if coach == "openai" else 0)
        return capsys.readouterr().out

    return command


def test_a_model_is_certified_on_labelled_runs_with_its_calls_and_costs(server, certify):
    (found,) = json.loads(certify("--json"))["evaluations"]
    (coach,) = found["coaches"]
    assert len(server.requests) == 4  # One answer could not be read and is asked for again.
    assert (coach["usage"]["calls"], coach["usage"]["prompt_tokens"]) == (4, 4000)
    assert coach["usage"]["usd"] == pytest.approx(4 * (1000 * 1.0 + 100 * 4.0) / 1e6)
    assert (coach["counts"]["scored"], coach["counts"]["failed"]) == (6, 2)
    figures = {one["task"]: one for one in coach["figures"] if one["stratum"] == "all"}
    for task in ("guilty agent", "decisive step"):
        assert (figures[task]["entries"], figures[task]["answers"]) == (3, 2)
        assert figures[task]["of_all"]["mean"] == pytest.approx(1 / 3)
        assert figures[task]["of_answered"]["mean"] == pytest.approx(1 / 2)
    assert {one["name"]: one["all"] for one in coach["published"]} == {
        "agent accuracy": pytest.approx(1 / 3),
        "step accuracy": pytest.approx(1 / 3),
    }


def test_no_label_and_no_truth_is_sent_unless_the_truth_is_asked_for(server, certify):
    certify("--json")
    asked = json.dumps([request.body for request in server.requests])
    assert REASON not in asked and TRUTH not in asked and "mistake_" not in asked
    certify("--json", "--truth", "shown")
    shown = json.dumps([request.body for request in server.requests[4:]])
    assert TRUTH in shown and REASON not in shown and "mistake_" not in shown


def test_report_prints_the_spending_and_the_missing_verdicts(certify):
    printed = certify()
    assert "openai: 4 calls, 4,000 prompt tokens, 400 completion tokens, $0.0056" in printed
    assert "2 x failed: no reply fits" in printed


def test_second_certification_replays_the_cassette_at_no_cost(server, certify, tmp_path):
    first, second = (json.loads(certify("--json", "--cassette", str(tmp_path / "said.db"))) for _ in range(2))
    (before,), (after,) = (one["evaluations"][0]["coaches"] for one in (first, second))
    assert before["figures"] == after["figures"]
    assert (after["counts"]["replayed"], len(server.requests)) == (6, 6)  # What failed is asked again.


def test_an_investigator_is_certified_by_one_command(server, certify, tmp_path):
    first, second = (
        json.loads(certify("--json", "--cassette", str(tmp_path / "said.db"), coach="investigator")) for _ in range(2)
    )
    (before,), (after,) = (one["evaluations"][0]["coaches"] for one in (first, second))
    assert len(server.requests) == 6
    assert (before["usage"]["calls"], before["usage"]["usd"]) == (6, pytest.approx(6 * 1400 / 1e6))
    assert (before["counts"]["scored"], before["counts"]["abstained"]) == (2, 6)
    assert {one["name"]: one["all"] for one in before["published"]} == {
        "agent accuracy": pytest.approx(1 / 3),
        "step accuracy": pytest.approx(1 / 3),
    }
    assert before["figures"] == after["figures"] and after["usage"] is None
    printed = certify(coach="investigator")
    assert "by the published rules" in printed
    assert "investigator: 6 calls, 6,000 prompt tokens, 600 completion tokens, $0.0084" in printed
