"""The episode of `bench/rollout.py` in `verifiers`, in the leanest way that it offers; runs in `.venv-bench`.

- One `Env` with three `AgentConfig` roles, run one after another in one workspace per episode (a borrowed box), all
  episodes at once, without dashboard or upload, as its own eval runner does.
- The harness is a loop in this process. The bundled ones start a program for every agent's run; a Python process
  that imports an OpenAI client costs far more than all the rest.
- The model is a `Client` in this process, which answers at once with tokens and log-probabilities as its training
  client does. Between harness and client lies its interception server on loopback, which records the trace: its
  contract leaves no way around it. The harness keeps its connections to it open.
- The tool is a native call that the harness answers at once; the answer to the last one goes into no request, hence
  not into the trace. Each agent's run is judged by one instant `@reward`.
- Every episode is serialised and appended to `traces.jsonl`, again as its eval runner does.

Reads the episode as one JSON line, warms up, then plays a round for every further line and answers with its CPU
seconds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import verifiers.v1 as vf
from measure import cpu_seconds
from verifiers.v1.clients.train import serialize_completion
from verifiers.v1.dialects import Dialect
from verifiers.v1.graph import PendingTurn
from verifiers.v1.interception import InterceptionServer, InterceptionServerConfig
from verifiers.v1.utils.trace_store import append_episode

__all__ = ["InProcess", "Problems"]
PLUGIN = "verifiers_episode"
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs a program and returns what it printed.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}
ENDPOINT = vf.EvalClientConfig(base_url="http://in-process", api_key_var="UNUSED")
"""Names the client; nothing is sent there."""
episode: dict[str, Any] = {}
"""What is played: `start_peer` in bench/rollout.py sends it."""


class Problem(vf.Task[vf.TaskData]):
    @vf.reward
    async def judged(self, trace: vf.Trace) -> float:
        return 0.7


class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self) -> Iterable[Problem]:
        return [Problem(vf.TaskData(prompt=problem), self.config.task) for problem in episode["problems"]]


class InProcess(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    connections: aiohttp.ClientSession

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        messages: list[dict[str, Any]] = [{"role": "user", "content": data.prompt}]
        turns = episode["agents"][ctx.model]["turns"]
        body = {"model": ctx.model, "messages": messages} | ({"tools": [TOOL]} if turns[0]["code"] else {})
        for _ in turns:
            async with self.connections.post(
                f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
            ) as response:
                message = (await response.json())["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls", ()):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": episode["output"]})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class Instant(vf.Client):
    """Says the next turn of the agent whose name is the model's."""

    async def get_response(
        self,
        dialect: Dialect,
        body: dict[str, Any],
        sampling: vf.SamplingConfig,
        session_id: str | None = None,
        turn: PendingTurn | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> vf.Response:
        said = sum(message["role"] == "assistant" for message in body["messages"])
        now = episode["agents"][body["model"]]["turns"][said]
        prompt = list((_rendered(body["messages"]) + "<assistant>").encode())
        completion = list(f"{now['text']}{_arguments(now)}\n".encode())
        call = vf.ToolCall(id=f"call_{said}", name="python", arguments=_arguments(now))
        response = vf.Response(
            id="instant",
            created=0,
            model=body["model"],
            message=vf.AssistantMessage(content=now["text"], tool_calls=[call] if now["code"] else None),
            finish_reason="tool_calls" if now["code"] else "stop",
            usage=vf.Usage(prompt_tokens=len(prompt), completion_tokens=len(completion)),
            tokens=vf.TurnTokens.model_construct(
                prompt_ids=prompt, completion_ids=completion, completion_logprobs=[-1.0] * len(completion)
            ),
        )
        response.raw = serialize_completion(response, body["model"])
        return response


def _arguments(turn: dict[str, Any]) -> str:
    return json.dumps({"code": turn["code"]}) if turn["code"] else ""


def _rendered(messages: list[dict[str, Any]]) -> str:
    """So that a later prompt begins with the earlier one and its completion, token for token."""
    text = ""
    for message in messages:
        calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
        text += f"<{message['role']}>{message['content']}{calls}\n"
    return text


class TeamConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    coder: vf.AgentConfig = vf.AgentConfig()
    verifier: vf.AgentConfig = vf.AgentConfig()


class Team(vf.Env[TeamConfig]):
    async def start(self) -> None:
        InProcess.connections = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        assert isinstance(self._interception, InterceptionServer)
        self._interception.clients[ENDPOINT.model_dump_json()] = Instant()

    async def stop(self) -> None:
        await InProcess.connections.close()

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.solver.provision(task) as box:
            for name, part in episode["agents"].items():
                prompt = part["prompt"].format(problem=task.data.prompt)
                await getattr(agents, name).run(task.with_data(prompt=prompt), runtime=box)


def team() -> Team:
    role = {"harness": {"id": PLUGIN}, "runtime": vf.SubprocessConfig()}
    roles = {name: vf.AgentConfig(model=name, **role) for name in episode["agents"]}
    return Team(TeamConfig(taskset={"id": PLUGIN}, interception=InterceptionServerConfig(), **roles))


async def play(env: Team, folder: Path, lock: asyncio.Lock) -> None:
    async def saved(finished: vf.Episode) -> None:
        await append_episode(folder, finished, lock)

    context = vf.ModelContext(model="unused", client=ENDPOINT)
    slots = [slot for task in env.taskset for slot in env.slots(task)]
    episodes = await asyncio.gather(*(env.run_slot(slot, context, on_complete=saved) for slot in slots))
    turns = sum(len(part["turns"]) for part in episode["agents"].values())
    assert all(played.ok and played.num_turns == turns for played in episodes), [played.errors for played in episodes]


async def serve() -> None:
    episode.update(json.loads(sys.stdin.readline()))
    env, lock = team(), asyncio.Lock()
    async with env.serving():
        await play(env, Path(episode["folder"]), lock)
        gc.collect()
        gc.freeze()
        while await asyncio.to_thread(sys.stdin.readline):
            start = cpu_seconds()
            await play(env, Path(episode["folder"]), lock)
            print(cpu_seconds() - start, flush=True)


if __name__ == "__main__":
    # verifiers imports plugins by name: serve from that module and not from its copy `__main__`.
    from verifiers_episode import serve as serve_plugin

    asyncio.run(serve_plugin())
