from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import Message, ToolCall
from mappa_core.tools.parse_calls import NOT_CLOSED, parse_calls, unanswered_calls, unquoted_arguments


def fenced(text: str) -> list[str | None]:
    """The code of each call, None for one that is cut off."""
    calls = parse_calls(Message(role="assistant", content=text), ["python"])
    assert all(call.name == "python" for call in calls)
    assert all(call.error in (None, NOT_CLOSED) for call in calls)
    return [None if call.error else call.arguments["code"] for call in calls]


def test_blocks_come_in_order_and_native_calls_before_them():
    native = ToolCall(name="calculator", arguments={"expression": "1"}, id="7")
    text = "First\n```python\na = 1\n```\nthen\n```py\nprint(2)\n```\n"
    calls = parse_calls(Message(role="assistant", content=text, tool_calls=(native,)), ["python", "calculator"])
    assert calls == (
        native,
        ToolCall(name="python", arguments={"code": "a = 1\n"}),
        ToolCall(name="python", arguments={"code": "print(2)\n"}),
    )


def test_blocks_are_text_where_python_is_not_offered():
    assert parse_calls(Message(role="assistant", content="```python\n1\n```"), ["calculator"]) == ()


def test_a_native_call_of_a_tool_that_is_not_offered_is_answered_not_run():
    native = ToolCall(name="shell", id="1")
    (call,) = parse_calls(Message(role="assistant", content="", tool_calls=(native,)), ["python"])
    assert (call.name, call.id) == ("shell", "1")
    assert call.error == "there is no tool 'shell' here (offered: python)"


def test_the_error_of_a_native_call_is_kept():
    native = ToolCall(name="shell", error="not JSON")
    assert parse_calls(Message(role="assistant", content="", tool_calls=(native,)), []) == (native,)


def test_reasoning_is_not_read():
    assert parse_calls(Message(role="assistant", content="", reasoning="```python\n1\n```"), ["python"]) == ()


@pytest.mark.parametrize(
    "info", ["python", "py", "Python", "PYTHON", "python3", "py3", " python ", "python title=x", "python {.line}"]
)
@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_first_word_of_the_info_string_marks_a_python_block(fence, info):
    assert fenced(f"{fence}{info}\nx\n{fence}") == ["x\n"]


@pytest.mark.parametrize("info", ["", "text", "pycon", "pythonic", "bash", "output python", "{python}"])
def test_other_blocks_are_not_run(info):
    assert fenced(f"```{info}\nx\n```") == []


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)",
        "```python\nprint(1)\n``",
        "```python",
        "````python\nprint(1)\n```\n",
        "```python\nprint(1)\n~~~\n",
        "```python\nprint(1)\n    ```\n",
        "```python\nprint(1)\n``` now\n",
        "> ```python\n> print(1)\nthe quote ended\n```",
    ],
)
def test_a_block_without_its_closing_fence_is_not_run(text):
    assert fenced(text)[0] is None


def test_blocks_before_a_cut_off_one_still_run():
    assert fenced("```python\n1\n```\n```python\n2") == ["1\n", None]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\n```", ""),
        ("```python\n\n\n```", "\n\n"),
        ("  ```python\n  a\n    b\nc\n   ```", "a\n  b\nc\n"),
        ("1. Compute:\n\n   ```python\n   if a:\n       b\n   ```\n", "if a:\n    b\n"),
        ("- Compute\n  ```python\n  a\n\n  b\n  ```\n- next", "a\n\nb\n"),
        ("> ```python\n> a\n> ```\n", "a\n"),
        ("<answer>\n```python\na\n```\n</answer>", "a\n"),
        ("# Title\n```python\na\n```", "a\n"),
        ("text\n```python\na\n```", "a\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("```python\ns = '''\n    ```\n'''\n```", "s = '''\n    ```\n'''\n"),
        ("```python\n\tif a:\n\t\tb \t\n```", "\tif a:\n\t\tb \t\n"),
        ("```python\r\na = 1\r\nb\r\n```\r\n", "a = 1\r\nb\r\n"),
        ("```python\na\rb\n```", "a\rb\n"),
        ("```python\ns = '\0\x0b\x0c\x1c\x85\u2028'\n```", "s = '\0\x0b\x0c\x1c\x85\u2028'\n"),
        ("```python\n&amp; \\* &#35;\n```   ", "&amp; \\* &#35;\n"),
    ],
)
def test_code_is_the_text_between_the_fences(text, code):
    assert fenced(text) == [code]


@pytest.mark.parametrize(
    "text",
    [
        "Use ```python print(1)``` inline",
        "Here: ```python\nprint(1)\n",
        "    ```python\n    print(1)\n    ```",
        "````markdown\n```python\nprint(1)\n```\n````",
        "``python\nprint(1)\n``",
    ],
)
def test_fence_invalid_in_commonmark_is_text(text):
    assert fenced(text) == []


line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)
ending = st.sampled_from(["\n", "\r\n"])


@given(
    lines=st.lists(line, max_size=6), fence=st.sampled_from("`~"), newline=ending, prose=st.sampled_from(["", "so\n"])
)
def test_any_code_comes_back_byte_for_byte(lines, fence, newline, prose):
    longest = max((len(text) - len(text.lstrip(fence)) for text in map(str.lstrip, lines)), default=0)
    marker = fence * max(3, longest + 1)
    code = "".join(text + newline for text in lines)
    assert fenced(f"{prose}{marker}python{newline}{code}{marker}{newline}after") == [code]


@given(st.text(alphabet="`~ \n\t>-1.pyton", max_size=80))
def test_no_text_breaks_the_parser(text):
    for code in fenced(text):
        assert code is None or isinstance(code, str)


@pytest.mark.parametrize("text", [">" * 20_000, "- " * 20_000, "* a\n" * 5_000, "`" * 50_000, "[" * 20_000])
def test_hostile_text_is_parsed_too(text):
    assert fenced(text + "\n\n```python\n1\n```") in ([], ["1\n"])


@pytest.mark.parametrize(
    ("reply", "hidden"),
    [
        ("```python\nprint(1)\n```", True),
        ("So:\n~~~sql\nprint(1)\n~~~", True),
        ("I call print(1)", False),
        ("```python\nprint(1)", False),
        ("```\nprint(1)\nprint(2)\n```", False),
    ],
)
def test_arguments_that_a_fenced_block_holds_are_quoted(reply, hidden):
    call = ToolCall(name="python", arguments={"code": "print(1)", "empty": "", "n": 1})
    assert unquoted_arguments(call, reply) == ({} if hidden else {"code": "print(1)"}) | {"empty": "", "n": 1}


def test_a_call_is_answered_as_often_as_it_has_an_answer():
    call = ToolCall(name="add", arguments={"x": [1]})
    reply = Message(role="assistant", content="", tool_calls=(call, call, replace(call, id="7")))
    assert unanswered_calls(reply, ()) == [call, call, replace(call, id="7")]
    assert unanswered_calls(reply, (replace(call, error="no such tool"),)) == [call, replace(call, id="7")]
