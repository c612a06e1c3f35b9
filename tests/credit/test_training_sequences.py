from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mappa_core import Experience
from mappa_core.credit.build_experience import build_experience
from mappa_engine.learning.training_sequences import build_sequences

Row = tuple[str, str, list[int], list[int]]
"""Trajectory, policy, prompt, action."""

tokens = st.lists(st.integers(0, 1), min_size=1, max_size=3)


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Rows of which many go on from an earlier row of the same or of another policy or trajectory."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(0, 8))):
        earlier = draw(st.sampled_from([None, *rows]))
        prompt = draw(tokens) if earlier is None else [*earlier[2], *earlier[3], *draw(st.lists(st.integers(0, 1)))]
        rows.append((draw(st.sampled_from("xy")), draw(st.sampled_from("pq")), prompt, draw(tokens)))
    return rows


@pytest.fixture(scope="session")
def experience_of(make_step, make_trajectory):
    def make(rows: list[Row]) -> Experience:
        trajectories = []
        for name in sorted({row[0] for row in rows}):
            own = [row for row in rows if row[0] == name]
            steps = [
                make_step(f"{name}{k}", policy, position=k, prompt=prompt, tokens=action)
                for k, (_, policy, prompt, action) in enumerate(own)
            ]
            trajectories.append(make_trajectory(name, steps))
        given_rewards = [(1.0,) * len(trajectory.steps) for trajectory in trajectories]
        return build_experience(trajectories, given_rewards, {"p": "p", "q": "q"}, ("p", "q"), "correct")

    return make


def contexts(experience: Experience) -> list[list[int]]:
    """What stands before each sampled token in the row it belongs to."""
    found = []
    for row in range(len(experience.reward)):
        prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
        action = experience.tokens[experience.offsets[row] : experience.offsets[row + 1]]
        found += [[*prompt.tolist(), *action[:t].tolist()] for t in range(len(action))]
    return found


@given(histories(), st.data())
def test_each_token_of_the_chosen_rows_stands_once_after_its_own_context(experience_of, rows, data) -> None:
    experience = experience_of(rows)
    index = range(len(experience.reward))
    chosen = data.draw(st.none() | (st.lists(st.sampled_from(index)) if rows else st.just([])))
    found = build_sequences(experience, None if chosen is None else np.array(chosen, np.int64))
    before = contexts(experience)
    for segment in found:
        assert (segment.tokens.dtype, segment.targets.dtype, segment.source.dtype) == (np.int32, np.int64, np.int64)
        assert np.array_equal(segment.tokens[segment.targets], experience.tokens[segment.source])
        assert (np.diff(segment.targets) > 0).all()
        for target, source in zip(segment.targets, segment.source, strict=True):
            assert segment.tokens[:target].tolist() == before[source]
    expected = np.flatnonzero(np.isin(experience.row_of_token, list(index) if chosen is None else chosen))
    assert sorted(source for segment in found for source in segment.source.tolist()) == expected.tolist()


@given(histories())
def test_a_sequence_holds_one_policy_of_one_trajectory(experience_of, rows) -> None:
    experience = experience_of(rows)
    for segment in build_sequences(experience):
        own = experience.row_of_token[segment.source]
        assert len(set(zip(experience.policy[own], experience.trajectory[own], strict=True))) == 1


def rows_of(experience: Experience, rows: NDArray[np.int64] | None = None) -> list[list[int]]:
    return [np.unique(experience.row_of_token[s.source]).tolist() for s in build_sequences(experience, rows)]


def test_three_turns_with_tool_answers_between_are_one_sequence(experience_of) -> None:
    experience = experience_of(
        [
            ("t", "p", [1, 2], [3, 4]),
            ("t", "p", [1, 2, 3, 4, 90, 91], [5]),
            ("t", "p", [1, 2, 3, 4, 90, 91, 5], [6, 7]),
        ]
    )
    (segment,) = build_sequences(experience)
    assert segment.tokens.tolist() == [1, 2, 3, 4, 90, 91, 5, 6, 7]
    assert segment.targets.tolist() == [2, 3, 6, 7, 8]
    assert segment.source.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("why", "second"),
    [
        ("another policy", ("t", "q", [1, 2, 3, 4], [5])),
        ("another trajectory", ("u", "p", [1, 2, 3, 4], [5])),
        ("reasoning cut out of the history", ("t", "p", [1, 2, 4], [5])),
        ("another prompt", ("t", "p", [1, 9, 3, 4], [5])),
        ("the action not yet over", ("t", "p", [1, 2, 3], [5])),
        ("the same row again", ("t", "p", [1, 2], [3, 4])),
    ],
)
def test_rows_stay_apart_for(why: str, second: Row, experience_of) -> None:
    assert len(build_sequences(experience_of([("t", "p", [1, 2], [3, 4]), second]))) == 2


def test_interleaved_agents_of_a_shared_policy_form_a_sequence_each(experience_of) -> None:
    experience = experience_of(
        [
            ("t", "p", [1], [2]),
            ("t", "p", [9], [8]),
            ("t", "p", [1, 2], [3]),
            ("t", "p", [9, 8, 7], [6]),
        ]
    )
    assert rows_of(experience) == [[0, 2], [1, 3]]


def test_second_branch_of_a_prompt_begins_a_new_sequence(experience_of) -> None:
    experience = experience_of([("t", "p", [1], [2]), ("t", "p", [1, 2], [3]), ("t", "p", [1, 2, 5], [4])])
    assert rows_of(experience) == [[0, 1], [2]]


def test_rows_are_joined_over_a_row_that_was_not_chosen(experience_of) -> None:
    experience = experience_of([("t", "p", [1], [2]), ("t", "p", [1, 2], [3]), ("t", "p", [1, 2, 3], [4])])
    (segment,) = build_sequences(experience, np.array([2, 0, 2]))
    assert segment.tokens.tolist() == [1, 2, 3, 4]
    assert segment.targets.tolist() == [1, 3]
    assert segment.source.tolist() == [0, 2]


def test_no_rows_give_no_sequences(experience_of) -> None:
    assert build_sequences(experience_of([])) == ()
    assert build_sequences(experience_of([("t", "p", [1], [2])]), np.array([], np.int64)) == ()
