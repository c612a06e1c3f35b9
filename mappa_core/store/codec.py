"""Records to JSON and back, without loss; what is large is kept apart under its content's hash.

`to_json` gives one self-contained text, for people and exports. `pack` gives a short text: arrays and long strings in
it are addresses of blobs, so that a prompt that many actions share is stored once.

JSON has no arrays of numbers of a given width, no NaN and no unpaired surrogates, yet programs and models write them
all. Each becomes a string that starts with `@`, and a string that itself starts with `@` gets a second one:

    @float:nan            a float that JSON lacks (nan, inf, -inf)
    @<i4=AAECAw==         an array of numpy's type `<i4`, shape (n,), in base64
    @<i4#5f1c…            the same as the address of a blob
    @str=7aCA             a string that UTF-8 lacks, in base64
    @str#9b20…            a long string as the address of a blob
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from hashlib import sha256
from math import isfinite
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np

T = TypeVar("T")
Keep = Callable[[str, bytes], None]
"""Takes an address and the blob to be stored there."""
Fetch = Callable[[str], bytes]
"""Gives the blob at an address; raises KeyError where there is none."""

INLINE_TEXT = 256
INLINE_ARRAY = 1024
"""Characters and bytes up to which a string or an array stays in the text: a blob of its own costs more."""


def address(data: bytes) -> str:
    """Where a blob is stored: the first 128 bits of its SHA-256, in hex."""
    return sha256(data).hexdigest()[:32]


def to_json(value: Any) -> bytes:
    """Any record, or JSON values with records in them, as one JSON text. Raises TypeError for what is neither."""
    return msgspec.json.encode(_Packing(None).tree(value))


def from_json(kind: type[T], data: bytes | str) -> T:
    """The record that `to_json` wrote; its arrays cannot be written to. Raises msgspec.DecodeError for text that is no
    JSON and msgspec.ValidationError for JSON of another kind."""
    return unpack(kind, data, _no_blobs)


def pack(value: Any, keep: Keep) -> bytes:
    """A record as a short JSON text; `keep` is given the blobs that the text refers to."""
    return msgspec.json.encode(_Packing(keep).tree(value))


def unpack(kind: type[T], data: bytes | str, fetch: Fetch) -> T:
    """The record that `pack` wrote, as `from_json` gives it. Raises what `fetch` raises for a blob that is lost."""
    return msgspec.convert(_whole(msgspec.json.decode(data), fetch), kind, dec_hook=_checked_array)


class _Packing:
    """One walk over a record. Without `keep` everything stays in the text."""

    def __init__(self, keep: Keep | None) -> None:
        self.keep = keep

    def tree(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            short = len(value) <= INLINE_TEXT and value.isascii()
            return value if short and value[:1] != "@" else self.text(value)
        if value is None or kind is int or kind is bool:
            return value
        if kind is float:
            return value if isfinite(value) else f"@float:{value}"
        if kind is tuple or kind is list:
            return [self.tree(item) for item in value]
        if is_dataclass(kind):
            return {name: self.tree(getattr(value, name)) for name in _names(kind)}
        if isinstance(value, Mapping):
            return {self.tree(str(key)): self.tree(item) for key, item in value.items()}
        if kind is np.ndarray:
            return self.array(value)
        # Rows of task files may hold dates, decimals and the like; msgspec refuses what JSON cannot hold.
        return self.tree(value.item() if isinstance(value, np.generic) else msgspec.to_builtins(value))

    def text(self, value: str) -> str:
        if self.keep is not None and len(value) > INLINE_TEXT:
            where, data = _located(value)
            self.keep(where, data)
            return f"@str#{where}"
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"@str={b64encode(value.encode(errors='surrogatepass')).decode()}"
        return "@" + value if value[:1] == "@" else value

    def array(self, value: Any) -> str:
        if value.ndim != 1:
            raise TypeError(f"an array of a record has one axis, not {value.ndim}")
        kind, data = value.dtype.str, value.tobytes()
        if self.keep is None or len(data) <= INLINE_ARRAY:
            return f"@{kind}={b64encode(data).decode()}"
        where = address(data)
        self.keep(where, data)
        return f"@{kind}#{where}"


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@lru_cache(maxsize=256)
def _located(text: str) -> tuple[str, bytes]:
    """Address and blob of a text. Prompts come again and again; only the latest are remembered."""
    data = text.encode(errors="surrogatepass")
    return address(data), data


def _whole(value: Any, fetch: Fetch) -> Any:
    """Undo `_Packing.tree`."""
    kind = type(value)
    if kind is str:
        return _unmarked(value, fetch) if value[:1] == "@" else value
    if kind is dict:
        return {_whole(key, fetch): _whole(item, fetch) for key, item in value.items()}
    if kind is list:
        return [_whole(item, fetch) for item in value]
    return value


_MARK = re.compile(r"@(?P<kind>[^#=:@]+)(?P<how>[#=:])(?P<body>.*)", re.DOTALL)


def _unmarked(value: str, fetch: Fetch) -> Any:
    if value[1:2] == "@":
        return value[1:]
    mark = _MARK.fullmatch(value)
    if mark is None:
        raise msgspec.DecodeError(f"no string of ours: {value!r}")
    kind, how, body = mark.groups()
    if how == ":":
        return float(body)
    data = fetch(body) if how == "#" else b64decode(body)
    return data.decode(errors="surrogatepass") if kind == "str" else np.frombuffer(data, dtype=np.dtype(kind))


def _checked_array(kind: Any, value: Any) -> Any:
    wanted = get_args(get_args(kind)[1])[0]
    if not isinstance(value, np.ndarray) or value.dtype.type is not wanted:
        raise TypeError(f"expected an array of {wanted.__name__}, not {getattr(value, 'dtype', type(value).__name__)}")
    return value


def _no_blobs(where: str) -> bytes:
    raise msgspec.DecodeError(f"this text is not self-contained: it refers to the blob {where}")
