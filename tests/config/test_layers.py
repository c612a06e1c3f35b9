"""Merging trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mappa_core.config.layers import copy_origins, iter_leaves, merge, with_origin

KEYS = st.sampled_from(["a", "b", "c"])
TREES = st.dictionaries(
    KEYS,
    st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3)),
    max_size=3,
)


def reference(low, high):
    """Merging of plain values, in the plainest way."""
    if not isinstance(low, dict) or not isinstance(high, dict):
        return high
    return {
        key: reference(low[key], high[key]) if key in low and key in high else {**low, **high}[key]
        for key in {**low, **high}
    }


@given(TREES, TREES)
def test_merging_trees_merges_their_values(low, high):
    assert merge(with_origin(low, "low"), with_origin(high, "high")).plain == reference(low, high)


@given(TREES, TREES)
def test_merged_value_has_the_origin_of_the_upper_layer(low, high):
    for key, node in iter_leaves(merge(with_origin(low, "low"), with_origin(high, "high"))):
        source = with_origin(high if node.origin == "high" else low, "x")
        assert source.at(key) is None or key == "" or source.at(key).plain == node.plain


def test_options_of_a_lower_layer_are_dropped_if_use_changes():
    low = with_origin({"use": "a", "options": {"x": 1}, "limits": {"y": 2}}, "low")
    assert merge(low, with_origin({"use": "b"}, "high")).plain == {"use": "b", "limits": {"y": 2}}
    assert merge(low, with_origin({"use": "a"}, "high")).plain == low.plain
    assert merge(low, with_origin({"options": {"z": 3}}, "high")).plain["options"] == {"x": 1, "z": 3}


def test_a_layer_that_names_use_and_options_writes_the_choice_anew_at_any_depth():
    low = with_origin({"use": "a", "options": {"x": 1, "inner": {"use": "b", "options": {"y": 2}}}}, "low")
    assert merge(low, with_origin({"use": "a", "options": {"z": 3}}, "high")).plain["options"] == {"z": 3}
    inner = with_origin({"options": {"inner": {"use": "b", "options": {"z": 3}}}}, "high")
    assert merge(low, inner).plain["options"] == {"x": 1, "inner": {"use": "b", "options": {"z": 3}}}


def test_unset_value_has_the_origin_default():
    tree = copy_origins({"a": 1, "b": [{"c": 2}, {"c": 3}]}, with_origin({"b": [{"c": 2}]}, "f:1"))
    assert {key: node.origin for key, node in iter_leaves(tree)} == {"a": "default", "b.0.c": "f:1", "b.1.c": "default"}


def test_a_key_of_a_list_item_is_its_number():
    tree = with_origin({"a": [{"b": 1}]}, "f")
    assert tree.at("a.0.b").plain == 1
    assert tree.at("a.1") is None and tree.at("a.x") is None and tree.at("a.0.b.c") is None
