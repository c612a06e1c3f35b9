"""Access control of the viewer: only programs on this machine that know the token. Pages load nothing from other hosts
and run no scripts but the viewer's own. What writes is checked once more: it must come from one of the viewer's pages.
"""

from __future__ import annotations

from secrets import compare_digest
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Allowed Host headers, against DNS rebinding: a foreign page whose name resolves to this machine has another one."""
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: under it browsers send `Origin: null` with the viewer's own forms, too.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOKEN_HINT = "Open the address that `mappa view` printed: it ends with ?token=…\n"


def is_from_own_page(request: Request) -> bool:
    """Whether a request that writes was sent by a page of this server: browsers name the page's origin, and no page can
    choose what they name. The Host header is one of this machine, as the token's middleware has checked."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    return origin == f"http://{request.headers.get('host')}" and site == "same-origin"


class TokenAuthMiddleware:
    """ASGI middleware that requires the token. It comes once in the URL (`?token=`) and is kept in an HttpOnly cookie;
    the response redirects to the URL without it."""

    def __init__(self, app: ASGIApp, *, token: str, cookie: str) -> None:
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """The response in place of a page; None if access is allowed."""
        headers = Headers(scope=scope)
        if (
            headers.get("host", "").rsplit(":", 1)[0].lower() not in LOCAL_HOSTS
            and headers.get("host") not in LOCAL_HOSTS
        ):
            return PlainTextResponse("This server answers to its own machine alone.\n", status_code=421)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and self._is_token(given):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            response = RedirectResponse(
                f"/{quote(scope['path'].lstrip('/'))}{f'?{rest}' if rest else ''}", status_code=303
            )
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return response
        known = self._is_token(Request(scope).cookies.get(self._cookie, ""))
        return None if known else PlainTextResponse(TOKEN_HINT, status_code=403)

    def _is_token(self, given: str) -> bool:
        return compare_digest(given.encode(errors="replace"), self._token.encode())
