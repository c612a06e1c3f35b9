"""Run folder: all files of one run.

    <root>/<plugin>-<recipe>-<time>-<4 hex>/
        config.yaml     the resolved settings
        config.mark     that this user made it (see `marks`)
        run.db          all records (see `schema`)
        summary.json    its results (see `summary`)
        checkpoints/    (see `checkpoint`)
        files/          files that agents wrote, by content hash
        report.html
        run.lock        lock of the writing process, with its name

One process writes; any number of processes read, without a lock.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import AbstractContextManager, closing
from datetime import datetime
from io import BufferedReader, BytesIO
from pathlib import Path
from secrets import token_hex

from mappa.config.yaml_io import CONFIG as CONFIG
from mappa.store.checkpoint import Checkpoints
from mappa.store.marks import write_mark
from mappa.store.mirror import Mirror
from mappa.store.schema import DATABASE_NAME
from mappa.store.writer import Store
from mappa_core.errors import RunError
from mappa_core.files import has_file, read_text, storage_errors, write_file
from mappa_core.safe_files import open_own
from mappa_core.tools.file_archive import store_content
from mappa_core.tools.owned_folder import OwnedFolder

CHECKPOINTS = "checkpoints"
FILES = "files"
_LOCK = "run.lock"
_ASIDE = ".new-"
"""Prefix of folders in which runs are made."""
_MAX_LOCK_BYTES = 4096


class RunInUseError(RunError):
    """Another process writes the run."""


class RunFolder(AbstractContextManager["RunFolder"]):
    """The folder of a run, locked by its only writer. Closed by `with` or `close`."""

    def __init__(self, path: Path, *, scratch: Path | None, mirror: Mirror | None, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock
        self.store = Store(path / DATABASE_NAME, scratch=scratch)
        self.checkpoints = Checkpoints(path / CHECKPOINTS, before_publish=self.store.flush, mirror=mirror)

    @classmethod
    def create(
        cls,
        root: Path,
        name: str | None,
        *,
        plugin: str,
        recipe: str,
        config: str,
        scratch: Path | None = None,
        url: str | None = None,
        code: str | None = None,
    ) -> RunFolder:
        """Create a folder under `root`; `name` None generates one from plugin, recipe, time and four hex digits.

        `code` is the text of the plugin if that is a file; it is kept among the files of the run. `url` is where its
        checkpoints are copied to, into a folder of the same name; the config is written there at once, so that a
        read-only place is found before anything is computed. The folder is created atomically. Raises RunError if it
        exists or the storage fails.
        """
        path = _run_path(root, new_run_name(plugin, recipe) if name is None else name)
        with storage_errors(path):
            if os.path.lexists(path):
                raise RunError(f"{path} exists already: go on with it by --resume {path}, or choose another run.name")
            root.mkdir(parents=True, exist_ok=True)
            # Renamed when complete: a process that lists runs never sees one without its config or database.
            with closing(OwnedFolder(_ASIDE, root)) as own:
                aside = own.path / path.name
                aside.mkdir()
                write_file(aside, CONFIG, config)
                write_mark(aside / CONFIG, config)
                _keep_code(aside, code)
                Store.create(aside / DATABASE_NAME)
                if url is not None:
                    _claim_mirror(Mirror(url).subfolder(path.name), config)
                aside.rename(path)
        return cls.open(path, scratch=scratch, url=url)

    @classmethod
    def open(cls, path: Path, *, scratch: Path | None = None, url: str | None = None) -> RunFolder:
        """Open the folder of an earlier run, to resume it. Raises RunError if it is not a run folder, is locked by
        another process, of another schema or not writable."""
        _check_run_folder(path)
        mirror = checkpoint_mirror(path, url)
        with storage_errors(path):
            lock = _acquire_lock(path)
        try:
            folder = cls(path, scratch=scratch, mirror=mirror, lock=lock)
            # Under the lock: without it, what looks like a leftover may be the checkpoint that the writer is writing.
            with storage_errors(path):
                folder.checkpoints.remove_unfinished()
        except BaseException:
            os.close(lock)
            raise
        return folder

    @property
    def files(self) -> Path:
        return self.path / FILES

    def write_config(self, text: str, code: str | None = None) -> None:
        """Replace `config.yaml`, for a run that resumes with other settings, or another text of its plugin."""
        with storage_errors(self.files):
            _keep_code(self.path, code)
        write_file(self.path, CONFIG, text)
        write_mark(self.path / CONFIG, text)

    def close(self) -> None:
        """Close the store and release the lock; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            # The lock goes last: the next writer must find the journal merged.
            try:
                self.store.close()
            finally:
                os.close(lock)

    def __exit__(self, *_: object) -> None:
        self.close()


def checkpoint_mirror(run: Path, url: str | None) -> Mirror | None:
    """Mirror of the checkpoints of a run, if it has one; `url` is its `checkpoint.url`."""
    return None if url is None else Mirror(url).subfolder(run.resolve().name)


def open_checkpoints(run: Path, url: str | None) -> Checkpoints:
    """Checkpoints of a run, for reading; `url` is its `checkpoint.url`."""
    return Checkpoints(run / CHECKPOINTS, mirror=checkpoint_mirror(run, url))


def is_run_folder(path: Path) -> bool:
    """Whether a folder holds a run; one that may not be entered holds none."""
    # `Path.exists` would raise in a folder that may not be entered.
    return os.access(path / DATABASE_NAME, os.F_OK, effective_ids=True)


def list_run_folders(root: Path) -> tuple[Path, ...]:
    """List the run folders under `root`, the oldest first."""
    if not root.is_dir():
        return ()
    folders = [path for path in root.iterdir() if not path.name.startswith(".") and is_run_folder(path)]
    return tuple(sorted(folders, key=lambda path: (_creation_time_ns(path), path.name)))


def _creation_time_ns(path: Path) -> int:
    """The config is written once; a damaged run may have lost it, and is listed all the same."""
    names = (CONFIG, DATABASE_NAME) if os.path.lexists(path / CONFIG) else (DATABASE_NAME,)
    return (path / names[0]).stat(follow_symlinks=False).st_mtime_ns


def is_in_use(path: Path) -> bool:
    """Whether the process that wrote a run last is there; one of another machine is taken to be."""
    # Not by the lock: to try it is to take it, for a moment in which the run could not start.
    try:
        # RunError is a ValueError: what is missing, or no file, names no process.
        _, process, _, host = read_text(path, _LOCK, max_bytes=_MAX_LOCK_BYTES).split()
        if host == socket.gethostname():
            os.kill(int(process), 0)  # Signal 0 is not sent, only whether it could be.
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        pass  # The process is there, and somebody else's.
    return True


def new_run_name(plugin: str, recipe: str) -> str:
    """Generate `<plugin>-<recipe>-<YYYYmmdd-HHMMSS>-<4 hex>`, in local time."""
    return f"{plugin}-{recipe}-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"


def _run_path(root: Path, name: str) -> Path:
    if Path(name).name != name or name.startswith("."):
        raise RunError(f"run.name: {name!r} is not a name of a folder; the folder it lies in is run.root")
    return root / name


def _keep_code(run: Path, code: str | None) -> None:
    if code is not None:
        store_content(run / FILES, BufferedReader(BytesIO(code.encode())))


def _claim_mirror(mirror: Mirror, config: str) -> None:
    # Two runs of one name would overwrite one another's checkpoints.
    if mirror.read(CONFIG) is not None:
        raise RunError(f"{mirror.url} holds checkpoints of another run: choose another run.name or checkpoint.url")
    mirror.write(CONFIG, config.encode())


def _check_run_folder(path: Path) -> None:
    if not path.is_dir():
        raise RunError(f"{path} is not a run folder: there is no such folder")
    for name in (DATABASE_NAME, CONFIG):
        if not has_file(path, name):
            raise RunError(f"{path} is not a run folder: it has no {name}")


def _acquire_lock(path: Path) -> int:
    """Lock a run folder for as long as the returned file handle stays open."""
    # The kernel releases the lock when the process ends, however it ends; the file and the name in it stay. Opened
    # without truncating it: the name of a process that holds the lock is needed for the message.
    with storage_errors(path / _LOCK):
        handle = open_own(path, _LOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
    except BlockingIOError as error:
        holder = os.pread(handle, 200, 0).decode(errors="replace")
        os.close(handle)
        raise RunInUseError(f"{path} is in use by {holder}: wait for its end, or end it") from error
    except BaseException:
        os.close(handle)
        raise
    return handle
