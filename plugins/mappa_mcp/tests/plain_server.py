"""A server for tests without the SDK: the protocol by hand, on standard streams. It starts at once.

`plain_server.py WORD` misbehaves: `locked` ends with a word on standard error, `mute` never answers, `odd` offers a
tool whose schema is none.
"""

import json
import os
import sys

TOOLS = [
    {"name": "look_up", "inputSchema": {"type": "object", "properties": {"title": {"type": "string"}}}},
    {"name": "burn_down", "inputSchema": {"type": "object"}},
]


def called(name, arguments):
    if name == "burn_down":
        os._exit(3)
    text = f"{arguments.get('title')} {os.environ.get('SHELF_KEY')} {os.environ.get('PLANTED_KEY')}"
    return {"content": [{"type": "text", "text": text}]}


def answer(message):
    method, asked = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "plain", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        page = int(asked.get("cursor", 0))
        return {"tools": TOOLS[page : page + 1], **({} if page else {"nextCursor": "1"})}
    return called(asked["name"], asked["arguments"]) if method == "tools/call" else None


if __name__ == "__main__":
    if "locked" in sys.argv:
        sys.exit("the shelf is locked")
    if "odd" in sys.argv:
        TOOLS[0]["inputSchema"] = {"type": "object", "properties": {"title": {"type": "book"}}}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "mute" in sys.argv:
            continue
        result = answer(message)
        said = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
