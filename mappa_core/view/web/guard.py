"""Who may look: programs of this machine that know the token. Pages load nothing from elsewhere and run no script but
the viewer's own."""

from __future__ import annotations

from secrets import compare_digest
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine to itself. A page of elsewhere whose name leads here has another one."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ASK = "Open the address that `mappa view` printed: it ends with ?token=…\n"


class Guard:
    """ASGI middleware. The token comes once in the address (`?token=`) and stays in a cookie that scripts cannot read;
    the address is then shown without it."""

    def __init__(self, app: ASGIApp, *, token: str, cookie: str) -> None:
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, sealed)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is answered in place of a page; None where it may be seen."""
        headers = Headers(scope=scope)
        if headers.get("host", "").rsplit(":", 1)[0].lower() not in HOSTS and headers.get("host") not in HOSTS:
            return PlainTextResponse("This server answers to its own machine alone.\n", status_code=421)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and self._is_token(given):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            response = RedirectResponse(f"/{scope['path'].lstrip('/')}{f'?{rest}' if rest else ''}", status_code=303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return response
        known = self._is_token(Request(scope).cookies.get(self._cookie, ""))
        return None if known else PlainTextResponse(ASK, status_code=403)

    def _is_token(self, given: str) -> bool:
        return compare_digest(given.encode(errors="replace"), self._token.encode())
