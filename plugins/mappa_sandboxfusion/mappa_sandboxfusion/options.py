"""Options of the tool `sandboxfusion`."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from mappa_core import ConfigError

LOCAL_URL = "http://127.0.0.1:8080"
"""Address of a server on this machine, started as its documentation says."""
POSITIVE_OPTIONS = ("concurrency", "connect_timeout_s", "margin_s", "transfer_s", "attempts", "backoff_s", "chunk_mb")


@dataclass
class Options:
    urls: list[str] = field(default_factory=lambda: [LOCAL_URL])
    """Where the servers listen, each `http(s)://HOST:PORT`; programs go to the one with the fewest under way."""
    concurrency: int = 8
    """Programs that run at once on each server, which has no limit of its own; further ones wait in order."""
    connect_timeout_s: float = 10.0
    """Seconds after which a server that does not take a connection, or does not answer a ping, counts as down."""
    margin_s: float = 15.0
    """Seconds beyond a program's wall limit after which the server ends the call: for starting it, and for killing and
    listing what it left."""
    transfer_s: float = 60.0
    """Seconds that the files of one call may take on the way, there and back."""
    attempts: int = 10
    """How often a program is sent, by turns to all servers, before its call counts as lost."""
    backoff_s: float = 0.5
    """Seconds that a server is left alone after a fault; then it has to run a program to be asked again. Doubles each
    time that it does not."""
    max_backoff_s: float = 5.0
    """Longest time in seconds that a server is left alone."""
    chunk_mb: int = 16
    """Mebibytes of files that one call carries; more go in several."""
    memory_limit: bool = False
    """Whether the server sets its own limit of memory too: of the address space, for each process alone."""

    def check(self) -> None:
        """Raise ConfigError where a value is not allowed."""
        if not self.urls:
            raise ConfigError(f"sandboxfusion: urls: name at least one server, for example {LOCAL_URL}")
        for url in self.urls:
            _check_url(url)
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ConfigError("sandboxfusion: urls: names a server twice")
        for name in POSITIVE_OPTIONS:
            if not getattr(self, name) > 0:
                raise ConfigError(f"sandboxfusion: {name}: must be more than 0, not {getattr(self, name)}")
        if self.max_backoff_s < self.backoff_s:
            raise ConfigError(f"sandboxfusion: max_backoff_s: must be at least backoff_s, {self.backoff_s:g}")


def _check_url(text: str) -> None:
    try:
        url = urlsplit(text)
        port_fits = url.port is None or url.port > 0
    except ValueError:
        port_fits = False
    if not port_fits or url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ConfigError(f"sandboxfusion: urls: {text!r} is no http(s)://HOST:PORT")
    if "@" in url.netloc:
        raise ConfigError("sandboxfusion: urls: a name and password have no place in an address; servers ask for none")
