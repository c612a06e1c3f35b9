from __future__ import annotations

import dataclasses
import datetime
import math
import types
import typing
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import Completion, Message, Step, Task, Verdict, records
from mappa_core.codec import INLINE_TEXT, check_record, content_address, from_json, pack, to_json, unpack

RECORDS = [value for value in vars(records).values() if dataclasses.is_dataclass(value)]


@pytest.fixture
def long_step() -> Step:
    """A step with a long text and long arrays."""
    random, text = np.random.default_rng(0), "I add them. " * 40
    completion = Completion(
        text=text,
        prompt_tokens=random.integers(0, 9999, 600, dtype=np.int32),
        tokens=random.integers(0, 9999, 200, dtype=np.int32),
        logprobs=-random.random(200, dtype=np.float32),
        finish="stop",
    )
    reply = Message(role="assistant", content=text)
    return Step(
        id="t0/0", agent="solver", turn=0, position=0, policy="default", messages=(), reply=reply, completion=completion
    )


TEXT = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.text(max_size=5).map(lambda text: "@" + text),
    st.sampled_from(["@float:nan", "@str#00", "@<i4=AA==", "\ud800", "ü" * (INLINE_TEXT + 1), "a" * INLINE_TEXT]),
    st.text(st.characters(exclude_categories=()), min_size=1, max_size=4).map(lambda text: text * 400),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field of a record, by its annotation."""
    plain = {str: TEXT, float: st.floats(), int: st.integers(), bool: st.booleans(), type(None): st.none(), Any: JSON}
    if hint in plain:
        return plain[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXT, values(arguments[1]), max_size=2)
    if origin is np.ndarray:
        dtype = typing.get_args(arguments[1])[0]
        return st.binary(max_size=2000).map(lambda data: as_array(data[: len(data) // 8 * 8], dtype))
    return instances(hint)


def as_array(data: bytes, dtype: type) -> np.ndarray:
    raw = np.frombuffer(data, np.uint8)
    return raw > 127 if dtype is np.bool_ else raw.view(dtype)


def instances(kind: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    if kind is Verdict:
        leaf = {name: values(hint) for name, hint in hints.items() if name not in ("status", "score", "members")}
        leaves = st.one_of(
            st.builds(Verdict, status=st.just("scored"), score=st.floats(0, 10), **leaf),
            st.builds(Verdict, status=st.sampled_from(["abstained", "failed"]), **leaf),
        )
        return st.builds(dataclasses.replace, leaves, members=st.lists(leaves, max_size=2).map(tuple))
    return st.deferred(lambda: st.builds(kind, **{name: values(hint) for name, hint in hints.items()}))


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (one != one and other != other)
    return bool(one == other)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_record_comes_back_from_json_and_from_its_packed_form(kind: type, data: st.DataObject) -> None:
    record = data.draw(instances(kind))
    assert same(from_json(kind, to_json(record)), record)
    blobs: dict[str, bytes] = {}
    packed = pack(record, blobs.__setitem__)
    restored = unpack(kind, packed, blobs.__getitem__)
    assert same(restored, record)
    assert pack(restored, blobs.__setitem__) == packed
    assert all(content_address(blob) == where for where, blob in blobs.items())


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_checked_record_is_the_one_that_is_read_after_it_was_stored(kind: type, data: st.DataObject) -> None:
    record = data.draw(instances(kind))
    blobs: dict[str, bytes] = {}
    checked = check_record(kind, record, "the test")
    assert same(checked, unpack(kind, pack(record, blobs.__setitem__), blobs.__getitem__))


def test_what_is_checked_shares_nothing_with_its_giver_that_can_change() -> None:
    seen, tokens = {"columns": [1]}, np.arange(3, dtype=np.int32)
    checked = check_record(Task, Task(id="t", prompt="p", meta=seen | {"tokens": tokens}), "load")
    seen["columns"].append(2)
    tokens[0] = 9
    assert checked.meta["columns"] == [1] and checked.meta["tokens"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        checked.meta["tokens"][0] = 9
    with pytest.raises(TypeError, match="that cannot be stored: an array of a record has one axis, not 2"):
        check_record(Task, Task(id="t", prompt="p", meta={"table": np.ones((2, 2))}), "load")


def test_json_is_plain_where_json_can_say_it() -> None:
    text = to_json(Message(role="user", content="What is 3 + 4?"))
    assert msgspec.json.decode(text) == {
        "role": "user",
        "content": "What is 3 + 4?",
        "name": None,
        "tool_calls": [],
        "tool_call_id": None,
        "reasoning": None,
    }


def test_long_texts_and_arrays_leave_the_packed_text(long_step: Step) -> None:
    blobs: dict[str, bytes] = {}
    packed = pack(long_step, blobs.__setitem__)
    texts = {blob.decode() for blob in blobs.values() if b"add them" in blob}
    assert texts == {"I add them. " * 40}
    assert b"add them" not in packed
    assert long_step.completion.prompt_tokens.tobytes() in blobs.values()


def test_numbers_of_numpy_in_a_mapping_become_numbers() -> None:
    metrics = {"a": np.float32(0.5), "b": np.float64(2.5), "c": np.int64(3)}
    assert from_json(dict[str, float], to_json(metrics)) == {"a": 0.5, "b": 2.5, "c": 3.0}


def completion(**changes: Any) -> Completion:
    fields = {"text": "", "prompt_tokens": None, "tokens": None, "logprobs": None, "finish": "stop"}
    return Completion(**{**fields, **changes})


def test_an_array_of_another_type_than_its_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="expected an array of int32, not int64"):
        from_json(Completion, to_json(completion(tokens=np.arange(3))))


def test_an_array_with_two_axes_is_refused() -> None:
    with pytest.raises(TypeError, match="one axis"):
        to_json(completion(tokens=np.zeros((2, 2), np.int32)))


def test_a_value_that_is_no_json_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match="object"):
        to_json({"meta": object()})


def test_a_strided_array_is_stored_by_its_values() -> None:
    tokens = np.arange(10, dtype=np.int32)[::2]
    restored = from_json(Completion, to_json(completion(tokens=tokens)))
    assert restored.tokens is not None
    assert restored.tokens.tolist() == [0, 2, 4, 6, 8]


def test_packed_text_without_its_blobs_is_refused(long_step: Step) -> None:
    with pytest.raises(msgspec.DecodeError, match="not self-contained"):
        from_json(Step, pack(long_step, lambda where, data: None))


@pytest.mark.parametrize("text", ['"@"', '"@nonsense"'])
def test_an_unknown_mark_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError, match="no string of ours"):
        from_json(str, text)


def test_what_rows_of_tables_hold_becomes_the_text_that_says_it() -> None:
    meta = {"day": datetime.date(2024, 2, 29), "price": Decimal("1.50"), 7: "seven"}
    assert from_json(dict[str, Any], to_json(meta)) == {"day": "2024-02-29", "price": "1.50", "7": "seven"}
