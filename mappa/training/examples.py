"""Examples of what agents should have answered, for a warm start: read from chat data as TRL reads it, and as the
experience of one epoch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappa_core.codec import from_json, to_json
from mappa_core.credit.ragged import concatenate_rows, rows_to_offsets
from mappa_core.errors import ConfigError
from mappa_core.experience import Experience
from mappa_core.plugins import did_you_mean
from mappa_core.protocols import Sampler
from mappa_core.records import Int32, Message, ToolCall, ToolSpec
from mappa_core.safe_json import parse_own_json

LeftOut = Counter[tuple[str, str]]
"""Number of examples that cannot be learned from, by agent and reason."""
HELD_OUT_SHARE = 0.1
_CARD = "dataset.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What an agent should have answered to a prompt that shows it `tools`."""

    agent: str
    prompt: tuple[Message, ...]
    reply: str
    tools: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples in the order of their files, and the count of those left out."""

    kept: tuple[Example, ...]
    left_out: Mapping[tuple[str, str], int]


def read_examples(sources: Sequence[Path], agents: Collection[str], only: Collection[str]) -> Examples:
    """Read chat data: files of JSON lines or Parquet, or folders that `mappa export` wrote.

    A row has `prompt` and `completion`, or `messages`, each a list of messages; in `messages` every one of the
    assistant is an example. Optional are `tools` and `agent`. Without the latter a row belongs to the agent that the
    folder's card or the file's name says, or to the one in `only`. Agents that are not in `only`, if it has any, are
    left out.

    Raises ConfigError, with file and line, for a row that is none or belongs to nobody, and if no example is left.
    """
    for agent in only:
        if agent not in agents:
            raise ConfigError(f"--agent {agent}: the team has no such agent.{did_you_mean(agent, agents)}")
    kept: list[Example] = []
    left_out: LeftOut = Counter()
    for source in sources:
        for file, owner in _files(source):
            for place, row in _rows(file):
                agent = _agent(row, owner or file.stem, place, agents, only)
                if only and agent not in only:
                    left_out[agent, "of an agent that was not named"] += 1
                else:
                    kept += _examples(row, agent, place, left_out)
    if not kept:
        reasons = "; ".join(f"{agent}: {count} {reason}" for (agent, reason), count in left_out.items())
        raise ConfigError(f"{', '.join(map(str, sources))}: there is no example to learn from ({reasons or 'no rows'})")
    return Examples(kept=tuple(kept), left_out=left_out)


def _files(source: Path) -> Iterator[tuple[Path, str | None]]:
    """The files of a source, each with its agent if the card of its folder says so."""
    if source.is_file():
        yield source, None
    elif (source / _CARD).is_file():
        yield from _carded_files(source)
    else:
        raise ConfigError(
            f"{source}: there is no such file of JSON lines or Parquet, and no folder that `mappa export --to sft` "
            "wrote"
        )


def _carded_files(folder: Path) -> Iterator[tuple[Path, str]]:
    card = folder / _CARD
    entries = _json(card.read_bytes(), f"{card}").get("files")
    named = {agent: entry.get("file") for agent, entry in entries.items()} if _are_objects(entries) else {}
    if not named or not all(isinstance(name, str) for name in named.values()):
        raise ConfigError(f'{card}: `files` names no file of an agent, as in {{"NAME": {{"file": "NAME.parquet"}}}}')
    for agent, name in named.items():
        if Path(name).name != name or not (folder / name).is_file():
            raise ConfigError(f"{card}: it names {name!r}, which is no file of its folder")
        yield folder / name, agent


def _are_objects(entries: Any) -> bool:
    return isinstance(entries, dict) and all(isinstance(entry, dict) for entry in entries.values())


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    if file.suffix == ".parquet":
        for number, row in enumerate(_parquet_rows(file), start=1):
            yield f"{file}, row {number}", _without_none(row)
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{file}:{number}", _json(line, f"{file}:{number}")


def _parquet_rows(file: Path) -> Sequence[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f'{file}: Parquet needs pyarrow: pip install "mappa[data]"') from None
    try:
        rows: Sequence[Any] = pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{file}: this is no Parquet ({error})") from error
    return rows


def _without_none(value: Any) -> Any:
    """What Parquet holds without the fields that other rows have."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def _json(data: bytes | str, place: str) -> Any:
    found = _parse(data, place)
    if not isinstance(found, dict):
        raise ConfigError(f"{place}: an example is a JSON object, and this is a {type(found).__name__}")
    return found


def _parse(data: bytes | str, place: str) -> Any:
    try:
        return parse_own_json(data if isinstance(data, str) else data.decode("utf-8-sig"))
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from error


def _agent(row: Mapping[str, Any], named: str, place: str, agents: Collection[str], only: Collection[str]) -> str:
    if "agent" in row:
        if row["agent"] not in agents:
            raise ConfigError(
                f"{place}: `agent` is {row['agent']!r}, and the team has {', '.join(agents)}: name one of these"
            )
        return str(row["agent"])
    if named in agents:
        return named
    if len(only) == 1:
        return next(iter(only))
    raise ConfigError(
        f"{place}: whose example is this? Say so with --agent NAME, with a key `agent` in every row, or by the file's "
        f"name. The team has {', '.join(agents)}"
    )


def _examples(row: Mapping[str, Any], agent: str, place: str, left_out: LeftOut) -> Iterator[Example]:
    if "messages" in row:
        messages = _messages(row["messages"], f"{place}: messages")
        targets = [number for number, message in enumerate(messages) if message.role == "assistant"]
    elif "prompt" in row and "completion" in row:
        prompt = _messages(row["prompt"], f"{place}: prompt")
        completion = _messages(row["completion"], f"{place}: completion")
        if len(completion) != 1 or completion[0].role != "assistant":
            raise ConfigError(f"{place}: completion is to be one message of the assistant")
        messages, targets = (*prompt, *completion), [len(prompt)]
    else:
        raise ConfigError(
            f"{place}: an example has `prompt` and `completion`, or `messages`; this has {', '.join(row)}"
        )
    if not targets or targets[0] == 0:
        raise ConfigError(f"{place}: there is no message of the assistant that follows another one")
    tools = _tools(row.get("tools"), place)
    for target in targets:
        reason = _reason_to_skip(messages[target])
        if reason is None:
            reply = messages[target].content
            yield _checked(Example(agent=agent, prompt=messages[:target], reply=reply, tools=tools), place)
        else:
            left_out[agent, reason] += 1


def _checked(example: Example, place: str) -> Example:
    """Raise ConfigError for an example that the folder of the run could not give back."""
    try:
        return from_json(Example, to_json(example))
    except (TypeError, ValueError) as error:
        why, _, field = str(error).replace("`", "").partition(" - at $.")
        raise ConfigError(f"{place}: {field}: {why}") from error


def _reason_to_skip(reply: Message) -> str | None:
    # Both are written by the model's own template, in tokens that text never becomes.
    if reply.tool_calls:
        return "with native calls of tools"
    if reply.reasoning is not None:
        return "with reasoning apart"
    return None if reply.content.strip() else "empty"


def _messages(given: Any, place: str) -> tuple[Message, ...]:
    if not isinstance(given, list):
        raise ConfigError(f'{place}: this is to be a list of messages, as in [{{"role": "user", "content": "…"}}]')
    return tuple(_message(message, f"{place}[{number}]") for number, message in enumerate(given))


def _message(given: Any, place: str) -> Message:
    if not isinstance(given, dict) or given.get("role") not in ("system", "user", "assistant", "tool"):
        raise ConfigError(f"{place}: a message has a `role` (system, user, assistant, tool) and a `content`")
    content = given.get("content", "")
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        content = None if None in parts else "".join(map(str, parts))
    if not isinstance(content, str):
        raise ConfigError(f"{place}: `content` is to be a text; pictures and other media are not learned from")
    return Message(
        role=given["role"],
        content=content,
        name=given.get("name"),
        tool_calls=_calls(given.get("tool_calls") or [], f"{place}.tool_calls"),
        tool_call_id=given.get("tool_call_id"),
        reasoning=given.get("reasoning_content"),
    )


def _calls(given: Any, place: str) -> tuple[ToolCall, ...]:
    if not isinstance(given, list):
        raise ConfigError(f"{place}: this is to be a list of calls")
    return tuple(_call(call, place) for call in given)


def _call(given: Any, place: str) -> ToolCall:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ConfigError(f'{place}: a call is of the form {{"function": {{"name": …, "arguments": {{…}}}}}}')
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _json(arguments, f"{place}.arguments")
    return ToolCall(name=function["name"], arguments=arguments, id=given.get("id"))


def _tools(given: Any, place: str) -> tuple[ToolSpec, ...]:
    # A column of schemas is text in Parquet, as TRL's documentation advises: rows of different keys are no table.
    listed = _parse(given, f"{place}: tools") if isinstance(given, str) else given or []
    if not isinstance(listed, list):
        raise ConfigError(f"{place}: `tools` is to be a list, or one as a text of JSON")
    tools = []
    for tool in listed:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ConfigError(f'{place}: a tool is of the form {{"function": {{"name": …, "parameters": {{…}}}}}}')
        description, schema = function.get("description") or "", function.get("parameters") or {}
        tools.append(ToolSpec(name=function["name"], description=description, schema=schema))
    return tuple(tools)


def hold_out(examples: Sequence[Example]) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split into examples to learn from and those held out: a tenth of every agent's prompts, at least one of five or
    more, chosen by hash, so that equal prompts stay together whatever the order."""
    held_out: set[str] = set()
    for agent in dict.fromkeys(example.agent for example in examples):
        prompts = sorted({_prompt_hash(example) for example in examples if example.agent == agent})
        held_out.update(prompts[: max(round(HELD_OUT_SHARE * len(prompts)), int(len(prompts) >= 5))])
    parts: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        parts[_prompt_hash(example) in held_out].append(example)
    return tuple(parts[0]), tuple(parts[1])


def _prompt_hash(example: Example) -> str:
    return hashlib.sha256(to_json([example.agent, example.prompt])).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedExample:
    """An example as its policy reads and would write it."""

    example: Example
    prompt: Int32  # (P,)
    reply: Int32  # (T,), with the end-of-turn token


def tokenize(
    examples: Sequence[Example],
    sampler_of: Callable[[str], Sampler],
    max_tokens: Mapping[str, int],
    left_out: LeftOut,
) -> tuple[TokenizedExample, ...]:
    """Tokenize examples with the samplers of their agents' policies. Those that a policy cannot write exactly, or that
    are longer than the agent's `max_tokens` or the policy's window, are counted in `left_out`, never cut."""
    tokenized = []
    for example in examples:
        sampler = sampler_of(example.agent)
        reply = sampler.encode(example.reply)
        if reply is None:
            left_out[example.agent, "that its model cannot write exactly"] += 1
        elif len(reply) > max_tokens[example.agent]:
            left_out[example.agent, f"longer than its max_tokens ({max_tokens[example.agent]})"] += 1
        else:
            prompt = sampler.render(example.prompt, example.tools)
            if sampler.window is not None and len(prompt) + len(reply) > sampler.window:
                left_out[example.agent, f"longer than the window of its model ({sampler.window} tokens)"] += 1
            else:
                tokenized.append(TokenizedExample(example=example, prompt=prompt, reply=reply))
    return tuple(tokenized)


def build_examples_experience(examples: Sequence[TokenizedExample], policy_of: Mapping[str, str]) -> Experience:
    """Build the experience of one epoch: a row of reward 1 per example. Nothing sampled these tokens, so all columns of
    log-probabilities are NaN, as is the outcome."""
    agents = tuple(dict.fromkeys(item.example.agent for item in examples))
    policies = tuple(dict.fromkeys(policy_of[agent] for agent in agents))
    ids = tuple(f"example-{number:06d}" for number in range(len(examples)))
    count, numbers = len(examples), np.arange(len(examples), dtype=np.int32)
    zeros, unknown = np.zeros(count, np.int32), np.full(count, np.nan, np.float32)
    tokens = concatenate_rows([item.reply for item in examples], np.int32)
    logprobs = np.full(len(tokens), np.nan, np.float32)
    return Experience(
        agents=agents,
        policies=policies,
        trajectories=ids,
        tasks=ids,
        strata=("examples",),
        steps=ids,
        agent=np.array([agents.index(item.example.agent) for item in examples], np.int32),
        policy=np.array([policies.index(policy_of[item.example.agent]) for item in examples], np.int32),
        trajectory=numbers,
        task=numbers,
        group=numbers,
        stratum=zeros,
        position=zeros,
        turn=zeros,
        truncated=np.zeros(count, np.bool_),
        temperature=np.ones(count, np.float32),
        outcome=unknown,
        reward=np.ones(count, np.float32),
        weight=np.ones(count, np.float32),
        tokens=tokens,
        offsets=rows_to_offsets([item.reply for item in examples]),
        version=np.zeros(len(tokens), np.int32),
        logprobs=logprobs,
        prompt_tokens=concatenate_rows([item.prompt for item in examples], np.int32),
        prompt_offsets=rows_to_offsets([item.prompt for item in examples]),
        old_logprobs=logprobs,
    )
