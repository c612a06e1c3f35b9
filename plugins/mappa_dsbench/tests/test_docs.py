"""The page on DSBench says what is so."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_dsbench.embedded.recipes import HELD_OUT, TRAINING
from mappa_dsbench.embedded.sources import SOURCES
from mappa_dsbench.grading.submission import RejectionReason
from mappa_dsbench.published.catalogue import load_catalogue, load_corrections
from mappa_dsbench.roles import ROLES

PAGE = (Path(__file__).parents[3] / "docs" / "dsbench.md").read_text(encoding="utf-8")


def table(header: str) -> list[list[str]]:
    """The cells of the rows below a header."""
    lines = PAGE.partition(f"{header}\n")[2].splitlines()[1:]
    rows = lines[: lines.index("")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_correction_is_listed() -> None:
    listed = table("| task | what | published | so | why |")
    assert listed == [[one.task, one.field, one.published, one.true, one.why] for one in load_corrections()]
    assert f"is wrong in {len(load_corrections())} places" in PAGE


def test_every_data_set_is_listed_with_its_package_and_tasks() -> None:
    counts = {
        **{name: f"{count} training" for name, count in Counter(one.dataset for one in TRAINING).items()},
        **{name: f"{count} held-out" for name, count in Counter(one.dataset for one in HELD_OUT).items()},
    }
    listed = table("| data set | package | tasks | licence, as given there |")
    assert [row[:3] for row in listed] == [
        [name, source.files[0].split("/")[0], counts[name]] for name, source in SOURCES.items()
    ]
    assert all(row[3] for row in listed)
    assert f"{len(TRAINING)} training tasks and {len(HELD_OUT)} held-out ones" in PAGE


def test_every_reason_is_told_in_the_order_of_the_checks() -> None:
    assert [row[0].strip("`") for row in table("| reason | |")] == list(get_args(RejectionReason))


def test_the_contract_is_that_of_the_roles() -> None:
    for agent, needs, produces in table("| agent | needs | must leave |"):
        role = ROLES[agent.strip("`")]
        assert re.findall(r"`(.*?)`", produces) == list(role.produces)
        assert re.findall(r"`(.*?)`", needs) in ([], list(role.needs))


def test_numbers_are_true() -> None:
    sizes = [task.size for task in load_catalogue().values()]
    assert f"{len(sizes)} tasks, 64 to train on and 8 held out" in PAGE
    assert sizes.count("heavy") == 10 and "Ten tasks have more than 500 MB" in PAGE


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_a_block_can_be_laid_over_the_recipe(block: str, tmp_path: Path) -> None:
    (tmp_path / "block.yaml").write_text(block)
    compose(
        load_plugins(only=("look", "dsbench", "engine", "sandbox")),
        "dsbench",
        config_files=[tmp_path / "block.yaml"],
    ).require_installed()
