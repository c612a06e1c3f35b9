"""Names of attributes that are read and written are those of the packages that define them. The packages are not
imported to read a log: it is read without them, and logs have names of many versions."""

import ast
import re
from pathlib import Path

import openinference.semconv.trace as openinference
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

ROOT = Path(__file__).parents[3]
READERS = ROOT / "mappa/look/importing"
FOLDERS = (READERS, ROOT / "mappa/look/tracers", ROOT / "plugins/mappa_trackers/mappa_trackers")
EVENTS = {"gen_ai.evaluation.result"}
"""Names of events; the package has those of attributes alone."""


def texts(path: Path) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def constants(*holders: object) -> set[str]:
    return {value for one in holders for name, value in vars(one).items() if name.isupper() and isinstance(value, str)}


def test_names_of_the_genai_conventions():
    used = {
        text
        for folder in FOLDERS
        for path in folder.glob("*.py")
        for text in texts(path)
        if re.fullmatch(r"gen_ai\.[a-z_.]*[a-z]", text)
    }
    assert len(used) > 15
    assert used - constants(gen_ai_attributes) - EVENTS == set()


def test_names_of_openinference():
    holders = [value for name, value in vars(openinference).items() if name.endswith("Attributes")]
    used = {
        text
        for path in (READERS / "openinference.py", ROOT / "mappa/look/tracers/phoenix.py")
        for text in texts(path)
        if re.fullmatch(r"(llm|input|output|tool|tool_call|tag|agent|graph|openinference)\.[a-z_.]*[a-z]", text)
    }
    assert len(used) > 8
    assert used - constants(*holders) == set()
    kinds = {kind.value for kind in openinference.OpenInferenceSpanKindValues}
    assert {text for text in texts(READERS / "openinference.py") if text in ("LLM", "TOOL", "AGENT")} <= kinds
