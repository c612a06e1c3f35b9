"""A plugin of pytest: what a contract asks for is said where a clause of it fails. Imports nothing but pytest."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from typing import Any

import pytest

KIT = "mappa_core.testing"
CONTRACTS = (
    "conformance.contract", "contracts", "engines", "losses", "packages", "shapers", "tasks", "tools", "trackers",
    "transports",
)  # fmt: skip
"""Modules of the kit that hold contracts: their assertions show what was compared."""
ASYNC = (
    "the contracts of {kit} have coroutines, which pytest-asyncio runs in auto mode alone: "
    'pip install "mappa-core[test]", and put asyncio_mode = "auto" under [tool.pytest.ini_options] in pyproject.toml'
)

pytest.register_assert_rewrite(*(f"{KIT}.{module}" for module in CONTRACTS))


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Refuse coroutines that nobody would await: they would pass or be left out unseen."""
    waits = any(_clause(item) is not None and inspect.iscoroutinefunction(_clause(item)) for item in items)
    if waits and str(_asyncio_mode(config)) != "auto":
        raise pytest.UsageError(ASYNC.format(kit=KIT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Beside what failed, what the clause asks for and what to do."""
    report = yield
    clause = _clause(item)
    asked = None if clause is None else inspect.getdoc(clause)
    if report.when == "call" and report.failed and asked:
        report.sections.append(("What Mappa asks for, and what to do", asked))
    return report


def _clause(item: pytest.Item) -> Any:
    """The function of a test that a contract of the kit brought; None: it is of another."""
    function = getattr(item, "function", None)
    return function if str(getattr(function, "__module__", "")).startswith(f"{KIT}.") else None


def _asyncio_mode(config: pytest.Config) -> str | None:
    """The mode of pytest-asyncio, None where it is not installed."""
    try:
        chosen = config.getoption("asyncio_mode", default=None) or config.getini("asyncio_mode")
    except ValueError:
        return None
    mode: str | None = getattr(chosen, "value", chosen)
    return mode
