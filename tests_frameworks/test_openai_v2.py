"""Spans of OpenTelemetry's own instrumentation of the OpenAI client: messages are in them where it is told so."""

from __future__ import annotations

from pathlib import Path

import pytest
from spans import hold_spans, play_client

from mappa_core.errors import InputError

INSTRUMENTOR = "opentelemetry.instrumentation.openai_v2.OpenAIInstrumentor"


def test_spans_become_actions_of_the_agents_that_acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "span_only")
    hold_spans(INSTRUMENTOR, play_client, "my.agent", tmp_path)


def test_without_messages_the_settings_that_keep_them_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"CONTENT=span_only .*OPT_IN=gen_ai_latest_experimental"):
        hold_spans(INSTRUMENTOR, play_client, "my.agent", tmp_path)
