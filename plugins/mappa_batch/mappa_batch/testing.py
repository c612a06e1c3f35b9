"""Local servers that speak the three providers' wire formats of batches, and fail as these do. Needs aiohttp."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Literal

from aiohttp import web

Fate = Literal["answered", "errored", "expired", "cancelled", "missing"]
Answer = Callable[[str], str]
"""The reply to the last message of a call."""


@dataclass
class Batch:
    """A batch on a server: bodies of its calls by their ids, and their fates."""

    name: str
    calls: Mapping[str, Any]
    fates: Mapping[str, Fate]
    label: str = ""
    polls_left: int = 0
    status: str = "ended"  # that it will have
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def ended(self) -> bool:
        return self.polls_left <= 0


class BatchServer:
    """Base of the servers. `fates` are those of the calls of a batch, by numbers; `status` is that of a batch as a
    whole, `polls` how often it is asked for before it ends. Of the next submissions, `refuse` are refused with the
    status `refusal`, and `lose_answers` accepted without an answer."""

    def __init__(self, answer: Answer = lambda text: f"reply to {text}", *, polls: int = 1) -> None:
        self.answer = answer
        self.polls = polls
        self.fates: Callable[[int, int], Fate] = lambda batch, call: "answered"
        self.status: Callable[[int], str] = lambda batch: "ended"
        self.lose_answers = 0
        self.refuse = 0
        self.refusal = 503
        self.held = False  # no batch ends while this holds
        self.batches: list[Batch] = []
        self.requests: list[tuple[str, str]] = []
        self.url = ""
        self._random = Random(7)

    async def __aenter__(self) -> BatchServer:
        application = web.Application(client_max_size=64 * 2**20)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def calls(self) -> list[str]:
        """Last messages of all calls of all batches that the server accepted."""
        return [self.question(body) for batch in self.batches for body in batch.calls.values()]

    def question(self, body: Any) -> str:
        raise NotImplementedError

    async def respond(self, request: web.Request) -> web.Response:
        raise NotImplementedError

    async def _serve(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path))
        if request.transport is not None:
            self._connection = request.transport
        return await self.respond(request)

    def accept(self, calls: Mapping[str, Any], label: str = "") -> Batch | web.Response:
        """Create a batch; or refuse it."""
        if self.refuse:
            self.refuse -= 1
            return web.json_response({"error": {"message": "not now", "code": self.refusal}}, status=self.refusal)
        number = len(self.batches)
        fates = {call_id: self.fates(number, place) for place, call_id in enumerate(calls)}
        batch = Batch(
            self.name_of(number), calls, fates, label=label, polls_left=self.polls, status=self.status(number)
        )
        self.batches.append(batch)
        if self.lose_answers:
            self.lose_answers -= 1
            self._connection.abort()
        return batch

    def name_of(self, number: int) -> str:
        return f"batch_{number}"

    def batch(self, name: str, *, poll: bool = False) -> Batch | None:
        found = next((batch for batch in self.batches if batch.name == name), None)
        if found is not None and poll and not self.held:
            found.polls_left -= 1
        return found

    def shuffle(self, batch: Batch) -> list[tuple[str, Any, Fate]]:
        """Calls of a batch with their fates, in another order; those without a result are left out."""
        found = [
            (call_id, body, batch.fates[call_id])
            for call_id, body in batch.calls.items()
            if batch.fates[call_id] != "missing"
        ]
        self._random.shuffle(found)
        return found


def not_found() -> web.Response:
    return web.json_response({"error": {"message": "no such batch", "code": 404}}, status=404)


def counts_of(batch: Batch) -> dict[Fate, int]:
    fates: list[Fate] = list(batch.fates.values())
    return {fate: fates.count(fate) if batch.ended else 0 for fate in ("answered", "errored", "expired", "cancelled")}


class OpenAIServer(BatchServer):
    """`/v1/files` and `/v1/batches`; calls are to `/v1/chat/completions` or `/v1/responses`."""

    def __init__(self, answer: Answer = lambda text: f"reply to {text}", *, polls: int = 1) -> None:
        super().__init__(answer, polls=polls)
        self._files: dict[str, str] = {}

    def question(self, body: Any) -> str:
        messages = body["input"] if "input" in body else body["messages"]
        return str(messages[-1]["content"])

    async def respond(self, request: web.Request) -> web.Response:
        match request.method, request.path.split("/")[2:]:
            case "POST", ["files"]:
                form = await request.post()
                upload = form["file"]
                assert form["purpose"] == "batch"
                assert isinstance(upload, web.FileField)
                self._files[f"file-{len(self._files)}"] = upload.file.read().decode()
                return web.json_response({"id": f"file-{len(self._files) - 1}", "object": "file"})
            case "POST", ["batches"]:
                return self._create(await request.json())
            case "GET", ["batches"]:
                newest = self.batches[::-1]
                start = (
                    [batch.name for batch in newest].index(request.query["after"]) + 1
                    if "after" in request.query
                    else 0
                )
                page = newest[start : start + 2]
                more = start + 2 < len(newest)
                return web.json_response(
                    {"object": "list", "data": [self._show(batch) for batch in page], "has_more": more}
                )
            case "GET", ["batches", name]:
                batch = self.batch(name, poll=True)
                return not_found() if batch is None else web.json_response(self._show(batch))
            case "GET", ["files", file, "content"]:
                return web.Response(text=self._content(file))
        return not_found()

    def _create(self, body: dict[str, Any]) -> web.Response:
        assert body["completion_window"] == "24h"
        lines = [json.loads(line) for line in self._files[body["input_file_id"]].splitlines()]
        assert all(line["method"] == "POST" and line["url"] == body["endpoint"] for line in lines)
        calls = {line["custom_id"]: line["body"] for line in lines}
        accepted = self.accept(calls, body["metadata"]["mappa"])
        return accepted if isinstance(accepted, web.Response) else web.json_response(self._show(accepted))

    def _show(self, batch: Batch) -> dict[str, Any]:
        status = {"ended": "completed"}.get(batch.status, batch.status) if batch.ended else "in_progress"
        counts = counts_of(batch)
        errors = [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached", "line": None}]
        done = batch.ended and status != "failed"
        return {
            "id": batch.name, "object": "batch", "endpoint": "/v1/chat/completions", "completion_window": "24h",
            "input_file_id": "file-0", "created_at": int(batch.created.timestamp()), "status": status,
            "metadata": {"mappa": batch.label},
            "output_file_id": f"{batch.name}.out" if done and counts["answered"] else None,
            "error_file_id": f"{batch.name}.err" if done and counts["answered"] < len(batch.calls) else None,
            "errors": {"object": "list", "data": errors} if status == "failed" else None,
            "request_counts": {
                "total": len(batch.calls), "completed": counts["answered"], "failed": counts["errored"],
            },
        }  # fmt: skip

    def _content(self, file: str) -> str:
        name, kind = file.split(".")
        batch = self.batch(name)
        assert batch is not None
        wanted = [call for call in self.shuffle(batch) if (call[2] == "answered") == (kind == "out")]
        return "".join(json.dumps(self._line(call_id, body, fate)) + "\n" for call_id, body, fate in wanted)

    def _line(self, custom_id: str, body: Any, fate: Fate) -> dict[str, Any]:
        response: Any = None
        error: Any = None
        if fate == "answered":
            response = {"status_code": 200, "request_id": "r", "body": self._reply(body)}
        elif fate == "errored":
            failure = {"error": {"message": "The server had an error", "type": "server_error", "code": None}}
            response = {"status_code": 500, "request_id": "r", "body": failure}
        else:
            error = {"code": f"batch_{fate}", "message": "This request was not executed."}
        return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": error}

    def _reply(self, body: Any) -> dict[str, Any]:
        text = self.answer(self.question(body))
        if "input" in body:
            content = [{"type": "output_text", "text": text, "annotations": []}]
            usage = {"input_tokens": 100, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 0}}
            message = {"type": "message", "role": "assistant", "content": content}
            return {"status": "completed", "model": body["model"], "output": [message], "usage": usage}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}}
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"id": "c", "object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}


class AnthropicServer(BatchServer):
    """`/v1/messages/batches`."""

    def question(self, body: Any) -> str:
        return str(body["messages"][-1]["content"])

    def name_of(self, number: int) -> str:
        return f"msgbatch_{number}"

    async def respond(self, request: web.Request) -> web.Response:
        match request.method, request.path.split("/")[4:]:
            case "POST", []:
                calls = {line["custom_id"]: line["params"] for line in (await request.json())["requests"]}
                accepted = self.accept(calls)
                return accepted if isinstance(accepted, web.Response) else web.json_response(self._show(accepted))
            case "GET", []:
                newest = [self._show(batch) for batch in self.batches[::-1]]
                return web.json_response({"data": newest, "has_more": False, "first_id": None, "last_id": None})
            case "GET", [name]:
                batch = self.batch(name, poll=True)
                return not_found() if batch is None else web.json_response(self._show(batch))
            case "GET", [name, "results"]:
                batch = self.batch(name)
                assert batch is not None
                lines = (self._line(call_id, body, fate) for call_id, body, fate in self.shuffle(batch))
                text = "".join(json.dumps(line) + "\n" for line in lines)
                return web.Response(text=text, content_type="application/x-jsonl")
        return not_found()

    def _show(self, batch: Batch) -> dict[str, Any]:
        counts = counts_of(batch)
        return {
            "id": batch.name, "type": "message_batch", "created_at": batch.created.isoformat(),
            "expires_at": batch.created.isoformat(), "ended_at": None, "cancel_initiated_at": None, "archived_at": None,
            "processing_status": "ended" if batch.ended else "in_progress",
            "results_url": f"{self.url}/v1/messages/batches/{batch.name}/results" if batch.ended else None,
            "request_counts": {
                "processing": 0 if batch.ended else len(batch.calls), "succeeded": counts["answered"],
                "errored": counts["errored"], "expired": counts["expired"], "canceled": counts["cancelled"],
            },
        }  # fmt: skip

    def _line(self, custom_id: str, body: Any, fate: Fate) -> dict[str, Any]:
        result: dict[str, Any] = {"type": {"cancelled": "canceled"}.get(fate, fate)}
        if fate == "answered":
            result = {"type": "succeeded", "message": self._reply(body)}
        elif fate == "errored":
            result["error"] = {"type": "error", "error": {"type": "api_error", "message": "Internal server error"}}
        return {"custom_id": custom_id, "result": result}

    def _reply(self, body: Any) -> dict[str, Any]:
        content = [{"type": "text", "text": self.answer(self.question(body))}]
        usage = {"input_tokens": 100, "output_tokens": 10}
        return {
            "id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": content,
            "stop_reason": "end_turn", "stop_sequence": None, "usage": usage,
        }  # fmt: skip


class GeminiServer(BatchServer):
    """`/v1beta/models/M:batchGenerateContent` and `/v1beta/batches`."""

    def question(self, body: Any) -> str:
        return str(body["contents"][-1]["parts"][0]["text"])

    def name_of(self, number: int) -> str:
        return f"batches/{number}"

    async def respond(self, request: web.Request) -> web.Response:
        assert request.path.startswith("/v1beta/")
        match request.method, request.path.removeprefix("/v1beta/").split("/"):
            case "POST", ["models", _]:
                sent = (await request.json())["batch"]
                lines = sent["inputConfig"]["requests"]["requests"]
                accepted = self.accept(
                    {line["metadata"]["key"]: line["request"] for line in lines}, sent["displayName"]
                )
                return accepted if isinstance(accepted, web.Response) else web.json_response(self._show(accepted))
            case "GET", ["batches"]:
                start = int(request.query.get("pageToken") or 0)
                newest = self.batches[::-1]
                page: dict[str, Any] = {"operations": [self._show(batch) for batch in newest[start : start + 2]]}
                if start + 2 < len(newest):
                    page["nextPageToken"] = str(start + 2)
                return web.json_response(page)
            case "GET", ["batches", number]:
                batch = self.batch(f"batches/{number}", poll=True)
                return not_found() if batch is None else web.json_response(self._show(batch))
        return not_found()

    def _show(self, batch: Batch) -> dict[str, Any]:
        word = {"ended": "SUCCEEDED"}.get(batch.status, batch.status.upper()) if batch.ended else "RUNNING"
        counts = counts_of(batch)
        metadata: dict[str, Any] = {
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            "displayName": batch.label, "state": f"BATCH_STATE_{word}", "createTime": batch.created.isoformat(),
            "batchStats": {
                "requestCount": str(len(batch.calls)), "successfulRequestCount": str(counts["answered"]),
                "failedRequestCount": str(counts["errored"]),
            },
        }  # fmt: skip
        shown: dict[str, Any] = {"name": batch.name, "metadata": metadata}
        if batch.ended and word == "FAILED":
            shown["error"] = {"code": 8, "message": "Quota of batches is used up"}
        elif batch.ended:
            results = [self._result(call_id, body, fate) for call_id, body, fate in self.shuffle(batch)]
            metadata["output"] = {"inlinedResponses": {"inlinedResponses": results}}
            shown |= {"done": True, "response": metadata["output"]}
        return shown

    def _result(self, custom_id: str, body: Any, fate: Fate) -> dict[str, Any]:
        result: dict[str, Any] = {"metadata": {"key": custom_id}}
        if fate == "answered":
            content = {"role": "model", "parts": [{"text": self.answer(self.question(body))}]}
            usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
            candidate = {"content": content, "finishReason": "STOP", "index": 0}
            result["response"] = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "model"}
        else:
            code = {"errored": 13, "expired": 4, "cancelled": 1}[fate]
            details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "X"}]
            result["error"] = {"code": code, "message": f"it was {fate}", "details": details}
        return result
