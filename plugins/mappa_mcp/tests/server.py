"""A server for tests, as the SDK builds one; run as a program it speaks on its standard streams."""

import time

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shelf")


@server.tool()
def look_up(title: str, copies: int = 1) -> str:
    """Look a book up."""
    if title == "burnt":
        raise ToolError("that book is burnt")
    return f"{title}: {copies} on the shelf"


@server.tool()
def cover(title: str) -> list:
    """Show the cover of a book."""
    return [f"the cover of {title}", Image(data=b"\x89PNG", format="png")]


@server.tool()
def fetch(seconds: float) -> str:
    """Fetch a book from the cellar."""
    time.sleep(seconds)
    return "here it is"


@server.tool()
def copy_out(pages: int) -> str:
    """Copy pages out."""
    return "first\n" + "x" * (1000 * pages) + "\nlast"


def guarded(key: str):
    """The server over HTTP, for who has the key."""
    from starlette.responses import Response

    app = server.streamable_http_app()

    async def serve(scope, receive, send):
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {key}".encode():
            await Response("who are you?", 401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


if __name__ == "__main__":
    server.run()
