"""Marks of files that this user wrote or trusts, which a stranger cannot write.

Beside the config of a run made here lies `config.mark`: an HMAC-SHA256 over the hash of the config, by a random key in
the user's state folder (`$XDG_STATE_HOME/mappa`, by default `~/.local/state/mappa`). What somebody else wrote and the
user trusted is remembered in the same folder, by its place and its hash. Both end where the text changes.
"""

from __future__ import annotations

import hmac
import os
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes, token_hex

from mappa_core.errors import RunError
from mappa_core.files import write_atomic

MARK = ".mark"
KEY_NAME = "run-key"
TRUSTED = "trusted"
KEY_BYTES = 32
_MARK_LENGTH = 64
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A link in a run folder is not followed, and a FIFO does not block."""


def write_mark(file: Path, text: str) -> None:
    """Mark a file as written by this user with `text`. Without a state folder that can be written it stays without a
    mark: it works, and who builds of it later is asked."""
    key = _create_key()
    if key is not None:
        write_atomic(file.with_suffix(MARK), _sign(key, text))


def is_trusted(file: Path, text: str) -> bool:
    """Whether this user wrote the file with `text`, or has trusted it."""
    return _is_marked(file, text) or _is_remembered(file, text)


def remember_trust(file: Path, text: str) -> None:
    """Remember that the user trusts the file with `text`. Raises RunError where there is no state folder that can be
    written."""
    state = _state_folder()
    if state is None:
        raise RunError("there is no state folder to remember it in: set XDG_STATE_HOME or HOME")
    try:
        (state / TRUSTED).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{state / TRUSTED} cannot be made: {error.strerror}") from error
    # The content is for people who clean up; what counts is the name.
    write_atomic(state / TRUSTED / _trust_name(file, text), f"{file.resolve()}\n")


def _is_marked(file: Path, text: str) -> bool:
    key, mark = _load_key(), _read_regular(file.with_suffix(MARK), _MARK_LENGTH)
    return key is not None and mark is not None and hmac.compare_digest(mark, _sign(key, text).encode())


def _is_remembered(file: Path, text: str) -> bool:
    state = _state_folder()
    return state is not None and (state / TRUSTED / _trust_name(file, text)).is_file()


def _sign(key: bytes, text: str) -> str:
    return hmac.new(key, sha256(text.encode()).digest(), sha256).hexdigest()


def _trust_name(file: Path, text: str) -> str:
    place = os.fsencode(file.resolve())
    return sha256(sha256(place).digest() + sha256(text.encode()).digest()).hexdigest()


def _state_folder() -> Path | None:
    """The user's folder for what programs remember; None where the user has none. By the XDG Base Directory
    Specification a relative XDG_STATE_HOME is ignored."""
    named = Path(os.environ.get("XDG_STATE_HOME") or "")
    if named.is_absolute():
        return named / "mappa"
    try:
        return Path.home() / ".local" / "state" / "mappa"
    except RuntimeError:  # no HOME, and no such user
        return None


def _load_key() -> bytes | None:
    """The key; None if there is none, or one that others could have read or written."""
    state = _state_folder()
    return None if state is None else _read_regular(state / KEY_NAME, KEY_BYTES, private=True)


def _create_key() -> bytes | None:
    """The key, created if there is none; None if that is not possible."""
    state = _state_folder()
    if state is None:
        return None
    path, aside = state / KEY_NAME, state / f".{KEY_NAME}.{token_hex(4)}"
    try:
        if not path.exists():
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_private(aside, token_bytes(KEY_BYTES))
            # A link, which fails where there is a key: of two processes that begin at once, both take the first key.
            with suppress(FileExistsError):
                path.hardlink_to(aside)
    except OSError:
        return None
    finally:
        with suppress(OSError):
            aside.unlink()
    return _load_key()


def _write_private(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_regular(path: Path, length: int, *, private: bool = False) -> bytes | None:
    """The content of a regular file of exactly this length; None for anything else. `private`: only this user may read
    or write it."""
    try:
        handle = os.open(path, _OPEN)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != length:
            return None
        if private and (status.st_uid != os.geteuid() or status.st_mode & 0o077):
            return None
        return file.read(length + 1)
