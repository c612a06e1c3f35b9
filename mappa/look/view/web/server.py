"""The viewer's server. It accepts connections from this machine only, and runs until interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable
from secrets import token_urlsafe

import uvicorn

from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa_core import ConfigError

HOST = "127.0.0.1"


def serve(
    runs: RunFolders, *, port: int, announce: Callable[[str], None], page: str = "/", labeller: str | None = None
) -> None:
    """Serve pages on `runs` at `port` (0: any free one) until interrupted. `announce` is called with the URL of `page`,
    which includes the token, once the server accepts connections. `labeller` may label plays; None: nothing is written.

    Raises ConfigError if the port is taken.
    """
    token = token_urlsafe(24)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            raise ConfigError(f"--port {port}: {error.strerror}; choose another one, or 0 for any") from error
        listening.listen(128)
        bound_port = listening.getsockname()[1]
        app = create_app(runs, token=token, cookie=f"mappa_view_{bound_port}", labeller=labeller)
        announce(f"http://{HOST}:{bound_port}{page}{'&' if '?' in page else '?'}token={token}")
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
