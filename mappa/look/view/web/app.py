"""The web application: routes to pages. Every request opens the run's database read-only and closes it again. With a
labeller there is one that writes: it keeps a label of guilt, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mappa.look.view.web import coach, comparison, overview, policies, trajectories, trajectory
from mappa.look.view.web.auth import TokenAuthMiddleware
from mappa.look.view.web.labels import LabelForm
from mappa.look.view.web.rendering import render, template_environment
from mappa.look.view.web.run_folders import RunFolders, change_stamp
from mappa.look.view.web.telling import first_filters
from mappa.runs import RunReader
from mappa_core import RunError
from mappa_core.codec import to_json

SEEN_HEADER = "mappa-seen"
"""Header of a polling page: the `change_stamp` of its last response. The answer is 204 if nothing changed."""
STATIC_FILES = {
    "htmx.min.js": "text/javascript",
    "view.js": "text/javascript",
    "view.css": "text/css",
    "icon.svg": "image/svg+xml",
}

Context = Mapping[str, Any]
RunPage = Callable[[RunReader, Path, Request], Context]


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Serves the pages on a set of runs."""

    runs: RunFolders
    labels: LabelForm | None = None

    def overview(self, request: Request) -> Response:
        folders = self.runs.folders()
        now = change_stamp(folders)
        if request.headers.get(SEEN_HEADER) == now:
            return Response(status_code=204)
        return _render_page(
            request, "web/overview.html", now, runs=folders, **overview.build_overview_page(folders, request)
        )

    def compare(self, request: Request) -> Response:
        folders = self.runs.folders()
        context = comparison.build_comparison_page(folders, request)
        return _render_page(request, "web/comparison.html", change_stamp(folders), runs=folders, **context)

    def run(self, request: Request) -> Response:
        """Redirect to the list of trajectories, by the filters that a reader begins with."""
        folder = self._folder(request)
        with RunReader(folder) as reader:
            query = urlencode(first_filters(reader))
        name = quote(request.path_params["run"], safe="")
        return RedirectResponse(f"/runs/{name}/trajectories{f'?{query}' if query else ''}", status_code=303)

    def _folder(self, request: Request) -> Path:
        name = request.path_params["run"]
        try:
            return self.runs.folders()[name]
        except KeyError:
            raise HTTPException(404, f"There is no run {name}.") from None

    def run_endpoint(self, template: str, page: RunPage) -> Callable[[Request], Response]:
        """An endpoint for a page on the run named in the URL."""

        def answer(request: Request) -> Response:
            folders, name = self.runs.folders(), request.path_params["run"]
            if name not in folders:
                raise HTTPException(404, f"There is no run {name}.")
            now = change_stamp({name: folders[name]})
            if request.headers.get(SEEN_HEADER) == now:
                return Response(status_code=204)
            with RunReader(folders[name]) as reader:
                context = page(reader, folders[name], request)
            return _render_page(request, template, now, runs=folders, run=name, **context)

        return answer

    def trajectory(self, reader: RunReader, folder: Path, request: Request) -> Context:
        """The page of a trajectory, with the form for its label if somebody labels."""
        context = trajectory.build_trajectory_page(reader, folder, request)
        form = None if self.labels is None else self.labels.build(reader, context["found"])
        return {**context, "form": form}

    async def label(self, request: Request) -> Response:
        """Keep the label that a form holds, and go back to its page."""
        assert self.labels is not None  # there is no route without
        folder = self._folder(request)
        kept = await self.labels.keep(folder, request)
        name = quote(request.path_params["run"], safe="")
        return RedirectResponse(f"/runs/{name}/trajectory?{urlencode({'id': kept.trajectory})}#label", status_code=303)

    def record(self, read: Callable[[RunReader, Request], Any]) -> Callable[[Request], Response]:
        """An endpoint for a record of the run named in the URL, as JSON."""

        def answer(request: Request) -> Response:
            with RunReader(self._folder(request)) as reader:
                return Response(to_json(read(reader, request)), media_type="application/json")

        return answer


def create_app(runs: RunFolders, *, token: str, cookie: str = "mappa_view", labeller: str | None = None) -> Starlette:
    """Create the ASGI application. `cookie` is the name of the token's cookie; browsers share cookies among ports.
    `labeller` gives labels on its pages; None: nothing can be written."""
    viewer = Viewer(runs=runs, labels=None if labeller is None else LabelForm(labeller=labeller))
    run = "/runs/{run}"
    writing = [] if labeller is None else [Route(f"{run}/label", viewer.label, methods=["POST"])]
    return Starlette(
        routes=[
            Route("/", viewer.overview),
            Route("/compare", viewer.compare),
            Route(run, viewer.run),
            Route(
                f"{run}/trajectories",
                viewer.run_endpoint("web/trajectories.html", trajectories.build_trajectories_page),
            ),
            Route(f"{run}/newer", viewer.run_endpoint("web/newer.html", trajectories.count_newer)),
            Route(f"{run}/trajectory", viewer.run_endpoint("web/trajectory.html", viewer.trajectory)),
            Route(f"{run}/trajectory.json", viewer.record(trajectory.trajectory_document)),
            Route(f"{run}/action.json", viewer.record(trajectory.read_action)),
            Route(f"{run}/prompt", viewer.run_endpoint("web/prompt.html", trajectory.build_prompt)),
            Route(f"{run}/coach", viewer.run_endpoint("web/coach.html", coach.build_coach_page)),
            Route(f"{run}/policies", viewer.run_endpoint("web/policies.html", policies.build_policies_page)),
            Route("/static/{name}", _serve_static),
            *writing,
        ],
        middleware=[Middleware(TokenAuthMiddleware, token=token, cookie=cookie)],
        exception_handlers={HTTPException: _render_http_error, RunError: _render_run_error},
    )


def _render_page(request: Request, template: str, now: str, **context: Any) -> Response:
    query = f"?{request.url.query}" if request.url.query else ""
    page = render(template, here=quote(request.url.path) + query, query=query, stamp=now, **{"run": None, **context})
    return Response(page, media_type="text/html")


def _serve_static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC_FILES:
        raise HTTPException(404, "There is no such file.")
    return Response(_read_static(name), media_type=STATIC_FILES[name])


@cache
def _read_static(name: str) -> bytes:
    text = files("mappa.look.view").joinpath("static", name).read_text(encoding="utf-8")
    shared = template_environment().get_template("shared.html").module
    return (f"{shared.rules()}\n{text}" if name == "view.css" else text).encode()  # type: ignore[attr-defined]


def _render_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    page = render("web/error.html", run=None, runs={}, here="", query="", stamp="", text=error.detail)
    return Response(page, status_code=error.status_code, media_type="text/html")


def _render_run_error(request: Request, error: Exception) -> Response:
    """Render the error of a run that cannot be read (damaged or deleted); other runs stay visible."""
    page = render("web/error.html", run=None, runs={}, here="", query="", stamp="", text=str(error))
    return Response(page, status_code=409, media_type="text/html")
