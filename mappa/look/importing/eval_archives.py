"""Reads eval logs of inspect_ai (`.eval`): by its own library where that is installed, which knows how it compresses
them and where it keeps texts that occur often; else those that were written as plain zip files."""

from __future__ import annotations

import importlib
import io
import zipfile
from pathlib import Path
from typing import Any

from mappa_core import InputError
from mappa_core.files import read_named_file
from mappa_core.safe_json import parse_own_json

LIBRARY = "inspect_ai"


def read_eval_archive(path: Path, *, max_bytes: int) -> dict[str, Any]:
    """The log in its JSON form, with its samples. Raises InputError, also if it has more than `max_bytes`, packed or
    unpacked."""
    content = read_named_file(path, max_bytes=max_bytes)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # What is unpacked is cut at the size that the archive states.
            if sum(entry.file_size for entry in archive.infolist()) > max_bytes:
                raise ValueError(f"it unpacks to more than {max_bytes:,} bytes")
            library = _find_library()
            return _read_plain(archive, max_bytes) if library is None else _read_by(library, content, max_bytes)
    except NotImplementedError:
        raise InputError(
            f"{path}: this eval log is compressed in a way that only its own library reads: pip install {LIBRARY}"
        ) from None
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: no eval log of inspect_ai that can be read here: {error}; `inspect log convert --to json` makes "
            "one that can"
        ) from None


def _find_library() -> Any:
    """The library's module of logs; None where it is not installed."""
    try:
        return importlib.import_module(f"{LIBRARY}.log")
    except ImportError:
        return None


def _read_plain(archive: zipfile.ZipFile, max_bytes: int) -> dict[str, Any]:
    """Raises NotImplementedError for another compression."""
    header = parse_own_json(archive.read("header.json").decode(), max_characters=max_bytes)
    names = sorted(name for name in archive.namelist() if name.startswith("samples/"))
    samples = [parse_own_json(archive.read(name).decode(), max_characters=max_bytes) for name in names]
    return {**header, "samples": samples}


def _read_by(library: Any, content: bytes, max_bytes: int) -> dict[str, Any]:
    try:
        log = library.read_eval_log(
            io.BytesIO(content), resolve_attachments=True, format="eval", exclude_fields={"events"}
        )
    except Exception as error:  # whatever the library makes of what is in the log
        raise ValueError(f"{type(error).__name__}: {error}") from error
    found: dict[str, Any] = parse_own_json(log.model_dump_json(), max_characters=max_bytes)
    return found
