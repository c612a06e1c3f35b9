"""Lossless codec between records and JSON; large values are stored as blobs under their content hash.

`to_json` gives one self-contained text, for people and exports. `pack` gives a short text in which arrays and long
strings are addresses of blobs, so that a prompt shared by many actions is stored once, and of a conversation, each
prompt of which begins with the one before, what is new in each.

JSON has no typed number arrays, no NaN and no unpaired surrogates, but programs and models produce them. Each becomes a
string that starts with `@`, and a string that itself starts with `@` gets a second one:

    @float:nan            a float that JSON lacks (nan, inf, -inf)
    @<i4=AAECAw==         an array of numpy's type `<i4`, shape (n,), in base64
    @<i4#5f1c…,77e0…      the same as the addresses of blobs, each a part of it
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

from mappa_core.redaction import redact

T = TypeVar("T")
StoreBlob = Callable[[str, bytes], None]
"""Stores a blob at an address."""
FetchBlob = Callable[[str], bytes]
"""Returns the blob at an address; raises KeyError if there is none."""

INLINE_TEXT = 256
INLINE_ARRAY = 1024
"""Size up to which a string (characters) or an array (bytes) stays in the text: a small blob would cost more."""
ARRAY_PART = 4096
"""Bytes of an array in one blob."""


def content_address(data: bytes) -> str:
    """Address of a blob: the first 128 bits of its SHA-256, in hex."""
    return sha256(data).hexdigest()[:32]


def to_json(value: Any) -> bytes:
    """Encode a record, or JSON values that contain records, as one JSON text. Raises TypeError for other values."""
    return msgspec.json.encode(_Packer(None).tree(value))


def from_json(kind: type[T], data: bytes | str) -> T:
    """Decode a record that `to_json` wrote; its arrays are read-only. Raises msgspec.DecodeError for invalid JSON and
    msgspec.ValidationError for JSON of another kind."""
    return unpack(kind, data, _no_blobs)


def pack(value: Any, keep: StoreBlob) -> bytes:
    """Encode a record as a short JSON text; `keep` stores the blobs that the text refers to."""
    return msgspec.json.encode(_Packer(keep).tree(value))


def unpack(kind: type[T], data: bytes | str, fetch: FetchBlob) -> T:
    """Decode a record that `pack` wrote, as `from_json` does. Raises what `fetch` raises for a missing blob."""
    return msgspec.convert(_unescape(msgspec.json.decode(data), fetch), kind, dec_hook=_check_array)


def check_record(kind: type[T], value: object, giver: str, problem: type[Exception] = TypeError) -> T:
    """Return a record as it will be read. Raises `problem`, with the field, if what `giver` returned could not be."""
    if not isinstance(value, kind):
        raise problem(f"{giver} returned {type(value).__name__}, not a {kind.__name__}".replace("NoneType", "None"))
    try:
        for name in kind.__annotations__:
            # In the words of msgspec, which would take bytes for a text in base64.
            if isinstance(getattr(value, name), bytes):
                raise TypeError(f"Expected str, got bytes - at `$.{name}`")
        return msgspec.convert(_Plain(None).tree(value), kind, dec_hook=_check_array)
    except (TypeError, ValueError) as error:
        why, _, field = str(error).replace("`", "").partition(" - at $")
        raise problem(f"{giver} returned a {kind.__name__}{field} that cannot be stored: {why}") from error


class _Packer:
    """Encodes a record as a tree of JSON values. Without `keep` everything stays in the text."""

    def __init__(self, keep: StoreBlob | None) -> None:
        self.keep = keep

    def tree(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            value = redact(value)
            short = len(value) <= INLINE_TEXT and value.isascii()
            return value if short and value[:1] != "@" else self.text(value)
        if value is None or kind is int or kind is bool:
            return value
        if kind is float:
            return value if isfinite(value) else self.odd_float(value)
        if kind is tuple or kind is list:
            return [self.tree(item) for item in value]
        if is_dataclass(kind):
            return {name: self.tree(getattr(value, name)) for name in _field_names(kind)}
        if isinstance(value, Mapping):
            return {self.tree(str(key)): self.tree(item) for key, item in value.items()}
        if kind is np.ndarray:
            if value.ndim != 1:
                raise TypeError(f"an array of a record has one axis, not {value.ndim}")
            return self.array(value)
        # Rows of task files may hold dates, decimals and the like; msgspec refuses what JSON cannot hold.
        return self.tree(value.item() if isinstance(value, np.generic) else msgspec.to_builtins(value))

    def odd_float(self, value: float) -> Any:
        return f"@float:{value}"

    def text(self, value: str) -> str:
        # As a blob in any case of a long text, also of one that UTF-8 lacks: `_text_blob` lets surrogates pass.
        if self.keep is not None and len(value) > INLINE_TEXT:
            where, data = _text_blob(value)
            self.keep(where, data)
            return f"@str#{where}"
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"@str={b64encode(value.encode(errors='surrogatepass')).decode()}"
        return "@" + value if value[:1] == "@" else value

    def array(self, value: Any) -> Any:
        kind, data = value.dtype.str, value.tobytes()
        # In parts of a fixed size: a prompt that begins with the one before shares all parts but the last.
        if self.keep is None or len(data) <= INLINE_ARRAY:
            return f"@{kind}={b64encode(data).decode()}"
        parts = [data[start : start + ARRAY_PART] for start in range(0, len(data), ARRAY_PART)]
        addresses = [content_address(part) for part in parts]
        for address, part in zip(addresses, parts, strict=True):
            self.keep(address, part)
        return f"@{kind}#{','.join(addresses)}"


class _Plain(_Packer):
    """Leaves what JSON cannot say as it is, for a record that is only checked: the tree that unpacking comes to."""

    def odd_float(self, value: float) -> Any:
        return value

    def text(self, value: str) -> str:
        return value

    def array(self, value: Any) -> Any:
        own = value.copy()
        own.flags.writeable = False
        return own


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@lru_cache(maxsize=256)
def _text_blob(text: str) -> tuple[str, bytes]:
    """Address and blob of a text, cached because prompts repeat."""
    data = text.encode(errors="surrogatepass")
    return content_address(data), data


def _unescape(value: Any, fetch: FetchBlob) -> Any:
    """Undo `_Packer.tree`."""
    kind = type(value)
    if kind is str:
        return _unescape_text(value, fetch) if value[:1] == "@" else value
    if kind is dict:
        return {_unescape(key, fetch): _unescape(item, fetch) for key, item in value.items()}
    if kind is list:
        return [_unescape(item, fetch) for item in value]
    return value


_ESCAPED = re.compile(r"@(?P<kind>[^#=:@]+)(?P<how>[#=:])(?P<body>.*)", re.DOTALL)


def _unescape_text(value: str, fetch: FetchBlob) -> Any:
    if value[1:2] == "@":
        return value[1:]
    mark = _ESCAPED.fullmatch(value)
    if mark is None:
        raise msgspec.DecodeError(f"no string of ours: {value!r}")
    kind, how, body = mark.groups()
    if how == ":":
        return float(body)
    data = b"".join(map(fetch, body.split(","))) if how == "#" else b64decode(body)
    return data.decode(errors="surrogatepass") if kind == "str" else np.frombuffer(data, dtype=np.dtype(kind))


def _check_array(kind: Any, value: Any) -> Any:
    wanted = get_args(get_args(kind)[1])[0]
    if not isinstance(value, np.ndarray) or value.dtype.type is not wanted:
        raise TypeError(f"expected an array of {wanted.__name__}, not {getattr(value, 'dtype', type(value).__name__)}")
    return value


def _no_blobs(where: str) -> bytes:
    raise msgspec.DecodeError(f"this text is not self-contained: it refers to the blob {where}")
