from datetime import UTC, datetime, timedelta

import pytest

from mappa.look.tracers.address import TraceChoice, parse_address, parse_server
from mappa_core import InputError


@pytest.mark.parametrize(
    "text, server, project",
    [
        ("phoenix://localhost:6006/tickets", "http://localhost:6006", "tickets"),
        ("phoenix://[::1]:6006/tickets", "http://[::1]:6006", "tickets"),
        ("phoenix://phoenix.acme.example/My%20team", "https://phoenix.acme.example", "My team"),
        ("phoenix:///tickets", None, "tickets"),
        ("langfuse://", None, None),
        ("langfuse://cloud.langfuse.com/", "https://cloud.langfuse.com", None),
    ],
)
def test_an_address_names_a_server_and_a_project(text, server, project):
    found = parse_address(text)
    assert (found.server, found.project, found.choice) == (server, project, TraceChoice())


def test_traces_are_chosen_by_time_tag_and_limit():
    choice = parse_address("langfuse://?since=2026-11-01&until=2026-11-08T12:00%2B02:00&tag=a&tag=b&limit=20").choice
    assert choice == TraceChoice(
        since=datetime(2026, 11, 1, tzinfo=UTC),
        until=datetime(2026, 11, 8, 10, tzinfo=UTC),
        tags=("a", "b"),
        limit=20,
    )
    before = datetime.now(UTC)
    since = parse_address("langfuse://?since=7d").choice.since
    assert before <= since + timedelta(days=7) <= datetime.now(UTC)


@pytest.mark.parametrize(
    "text, says",
    [
        ("otel://localhost", "'otel' is no tracer; write phoenix:// or langfuse://"),
        ("phoenix://localhost", "name a project"),
        ("phoenix://localhost/a/b", "name a project"),
        ("langfuse://localhost/tickets", "the keys of Langfuse belong to one project"),
        ("phoenix://localhost:port/tickets", "could not be cast"),
        ("phoenix://:6006/tickets", "names no host"),
        ("langfuse://?sinse=7d", "'sinse' is not known; traces are chosen by since, until, tag and limit"),
        ("langfuse://?since=yesterday", "since=yesterday is not a time"),
        ("phoenix://[::1/tickets", "names a host that can be none"),
        ("langfuse://?since=0001-01-01T00:00%2B14:00", "is not a time"),
        ("langfuse://?limit=0", "limit=0 is not a number of traces"),
        ("langfuse://?limit=1e9", "limit=1e9 is not a number of traces"),
        ("langfuse://?limit=1&limit=2", "limit is given twice"),
    ],
)
def test_what_is_not_understood_is_said(text, says):
    with pytest.raises(InputError, match=says.replace("?", r"\?")):
        parse_address(text)


def test_an_address_that_holds_a_key_is_refused_and_not_repeated():
    with pytest.raises(InputError) as error:
        parse_address("langfuse://pk-lf-1:sk-lf-2@cloud.langfuse.com")
    assert "LANGFUSE_SECRET_KEY" in str(error.value) and "sk-lf" not in str(error.value)


@pytest.mark.parametrize("text", ["phoenix://localhost:1", "phoenix://localhost:1/", "phoenix://localhost:1/tickets"])
def test_verdicts_need_no_project(text):
    assert parse_server(text).server == "http://localhost:1"


def test_verdicts_go_to_the_server_of_the_environment():
    assert parse_server("phoenix://").server is None
    with pytest.raises(InputError, match="verdicts go to the spans of a run, so leave out"):
        parse_server("phoenix://localhost:1?since=1d")
