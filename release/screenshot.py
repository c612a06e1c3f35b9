"""Makes the picture of README from the run that is shipped: the viewer on a play that failed.

    python release/screenshot.py

It needs Chromium. The picture says of which page it is (the PNG text `page`), so that a test knows when it is old.
"""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import uvicorn
from starlette.testclient import TestClient

from mappa.look.demo import unpack_demo
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.look.view.web.telling import telling_address

PICTURE = Path(__file__).parents[1] / "docs/assets/failed-play.png"
SIZE = "1300,1010"
TOKEN, TEXT = "picture", b"page\0"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--blink-settings=preferredColorScheme=1")


def page_of(run: Path) -> str:
    """The hash of all that the picture shows: the page and its style, without what differs from time to time."""
    client = TestClient(create_app(RunFolders([run]), token=TOKEN), base_url="http://127.0.0.1")
    page = client.get(f"{telling_address(run)}&token={TOKEN}").text
    style = client.get("/static/view.css").text
    return sha256((re.sub(r'data-seen="[^"]*"', "", page) + style).encode()).hexdigest()


def page_in(picture: bytes) -> str | None:
    """The hash of the page that a picture says it is of; None if it says none."""
    found = re.search(b"tEXt" + TEXT + b"([0-9a-f]{64})", picture)
    return None if found is None else found[1].decode()


def with_page(picture: bytes, page: str) -> bytes:
    """The picture with the hash of its page, as a text chunk before its end."""
    text = b"tEXt" + TEXT + page.encode()
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    end = picture.rindex(b"\0\0\0\0IEND")
    return picture[:end] + chunk + picture[end:]


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """The address of the viewer of `run`, as long as it is shown."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        app = create_app(RunFolders([run]), token=TOKEN)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def take(picture: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no Chromium is installed: make chromium")
    with tempfile.TemporaryDirectory() as folder:
        run = unpack_demo(Path(folder))
        with serving(run) as address:
            options = (*FLAGS, f"--screenshot={picture}", f"--window-size={SIZE}", f"--user-data-dir={folder}/profile")
            url = f"{address}{telling_address(run)}&token={TOKEN}"
            subprocess.run([browser, *options, url], check=True, capture_output=True)
        picture.write_bytes(with_page(picture.read_bytes(), page_of(run)))


if __name__ == "__main__":
    take(PICTURE)
    print(f"wrote {PICTURE}")
