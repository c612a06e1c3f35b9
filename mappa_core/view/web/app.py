"""The application: addresses to pages, over databases that are opened to be read and closed again for every page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mappa_core.errors import RunError
from mappa_core.store.reader import Reader
from mappa_core.view.web import coach, overview, policies, trajectories, trajectory
from mappa_core.view.web.guard import Guard
from mappa_core.view.web.rendering import environment, render
from mappa_core.view.web.runs import Runs, stamp

SEEN = "mappa-seen"
"""Header of a page that asks again: what `stamp` was when it was made. It is answered by 204 where nothing changed."""
STATIC = {
    "htmx.min.js": "text/javascript",
    "view.js": "text/javascript",
    "view.css": "text/css",
    "icon.svg": "image/svg+xml",
}

Context = Mapping[str, Any]
PageOfRun = Callable[[Reader, Path, Request], Context]


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The pages on a set of runs."""

    runs: Runs

    def overview(self, request: Request) -> Response:
        folders = self.runs.folders()
        now = stamp(folders)
        if request.headers.get(SEEN) == now:
            return Response(status_code=204)
        return _page(request, "web/overview.html", now, runs=folders, **overview.page(folders, request))

    def of_run(self, template: str, page: PageOfRun) -> Callable[[Request], Response]:
        """An endpoint for a page on the run that the address names."""

        def answer(request: Request) -> Response:
            folders, name = self.runs.folders(), request.path_params["run"]
            if name not in folders:
                raise HTTPException(404, f"There is no run {name}.")
            now = stamp({name: folders[name]})
            if request.headers.get(SEEN) == now:
                return Response(status_code=204)
            with Reader(folders[name]) as reader:
                context = page(reader, folders[name], request)
            return _page(request, template, now, runs=folders, run=name, **context)

        return answer


def create_app(runs: Runs, *, token: str, cookie: str = "mappa_view") -> Starlette:
    """The ASGI application. `cookie` is the name of the one that keeps the token: browsers share them among ports."""
    viewer = Viewer(runs=runs)
    run = "/runs/{run}"
    return Starlette(
        routes=[
            Route("/", viewer.overview),
            Route(f"{run}/trajectories", viewer.of_run("web/trajectories.html", trajectories.page)),
            Route(f"{run}/newer", viewer.of_run("web/newer.html", trajectories.newer)),
            Route(f"{run}/trajectory", viewer.of_run("web/trajectory.html", trajectory.page)),
            Route(f"{run}/prompt", viewer.of_run("web/prompt.html", trajectory.prompt)),
            Route(f"{run}/coach", viewer.of_run("web/coach.html", coach.page)),
            Route(f"{run}/policies", viewer.of_run("web/policies.html", policies.page)),
            Route("/static/{name}", _static),
        ],
        middleware=[Middleware(Guard, token=token, cookie=cookie)],
        exception_handlers={HTTPException: _refused, RunError: _broken},
    )


def _page(request: Request, template: str, now: str, **context: Any) -> Response:
    query = f"?{request.url.query}" if request.url.query else ""
    page = render(template, here=quote(request.url.path) + query, query=query, stamp=now, **{"run": None, **context})
    return Response(page, media_type="text/html")


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404, "There is no such file.")
    return Response(_file(name), media_type=STATIC[name])


@cache
def _file(name: str) -> bytes:
    text = files("mappa_core.view").joinpath("static", name).read_text(encoding="utf-8")
    shared = environment().get_template("shared.html").module
    return (f"{shared.rules()}\n{text}" if name == "view.css" else text).encode()  # type: ignore[attr-defined]


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    page = render("web/error.html", run=None, runs={}, here="", query="", stamp="", text=error.detail)
    return Response(page, status_code=error.status_code, media_type="text/html")


def _broken(request: Request, error: Exception) -> Response:
    """A run that cannot be read (damaged, or gone since) is told, and other runs are still to be seen."""
    page = render("web/error.html", run=None, runs={}, here="", query="", stamp="", text=str(error))
    return Response(page, status_code=409, media_type="text/html")
