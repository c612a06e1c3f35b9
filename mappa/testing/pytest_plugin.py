"""Pytest plugin: shows the requirement of a contract's clause when it fails, and keeps what marks the runs of tests
out of the state folder of the user. Imports nothing but pytest."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Generator, Sequence
from typing import Any

import pytest

PACKAGE = "mappa.testing"
CONTRACT_MODULES = ("contracts", "engines", "packages", "shapers", "tasks", "tools", "trackers", "transports")
"""Modules that define contracts; pytest rewrites their assertions to show the compared values."""
ASYNC_MODE_ERROR = (
    f"the contracts of {PACKAGE} have coroutines, which pytest-asyncio runs in auto mode alone: "
    'pip install "mappa[test]", and put asyncio_mode = "auto" under [tool.pytest.ini_options] in pyproject.toml'
)

pytest.register_assert_rewrite(*(f"{PACKAGE}.{module}" for module in CONTRACT_MODULES))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the tests, and the programs that they start, a state folder of their own: keys and trust of tests are not
    those of who runs them."""
    state, former = tempfile.TemporaryDirectory(prefix="mappa-state-"), os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = state.name

    def restore() -> None:
        if former is None:
            os.environ.pop("XDG_STATE_HOME", None)
        else:
            os.environ["XDG_STATE_HOME"] = former
        state.cleanup()

    config.add_cleanup(restore)


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Raise UsageError if asynchronous clauses would not be awaited: they would pass or be skipped silently."""
    waits = any(inspect.iscoroutinefunction(_contract_clause(item)) for item in items)
    if waits and str(_asyncio_mode(config)) != "auto":
        raise pytest.UsageError(ASYNC_MODE_ERROR)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the docstring of a failed clause, its requirement and remedy, to the report."""
    report = yield
    clause = _contract_clause(item)
    if report.when == "call" and report.failed and clause is not None and (asked := inspect.getdoc(clause)):
        report.sections.append(("What Mappa asks for, and what to do", asked))
    return report


def _contract_clause(item: pytest.Item) -> Any:
    """Function of a test that is a clause of a contract, of core or of a package; None for any other."""
    function = getattr(item, "function", None)
    owner, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    is_clause = owner.endswith("Contract") and str(getattr(function, "__module__", "")).startswith(("mappa.", "mappa_"))
    return function if is_clause else None


def _asyncio_mode(config: pytest.Config) -> str | None:
    """Mode of pytest-asyncio; None if it is not installed."""
    try:
        chosen = config.getoption("asyncio_mode", default=None) or config.getini("asyncio_mode")
    except ValueError:
        return None
    mode: str | None = getattr(chosen, "value", chosen)
    return mode
