"""`mappa mathchat examples DIR`: writes examples of what the agents should answer to the stories, for a warm start."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from mappa_core import ConfigError

if TYPE_CHECKING:
    from mappa_mathchat.stories import Story
    from mappa_mathchat.workflow import MathChat

Row = Mapping[str, Sequence[Mapping[str, str]]]


@click.command("examples", short_help="Write examples for a warm start on the stories.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--count",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Stories; each is one example an agent.",
)
@click.option(
    "--agent",
    "fewer",
    metavar="AGENT=N",
    multiple=True,
    help="Write only the first N for an agent: what is learned at once needs fewer.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws other stories.")
@click.option("--prompts", default="smol", show_default=True, help="The set of prompts that the agents will see.")
def examples(folder: Path, count: int, fewer: Sequence[str], seed: int, prompts: str) -> None:
    """Write what the three agents of MathChat should answer to stories that are not held out: DIR/AGENT.jsonl, chat
    data as TRL reads it, and the card by which `mappa warm-start` finds them."""
    from mappa_mathchat.workflow import MathChat, MathChatOptions

    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: name another folder")
    workflow = MathChat(MathChatOptions(prompts=prompts))
    counts = {**dict.fromkeys(workflow.agents, count), **_parse_counts(fewer, workflow.agents, count)}
    rows = write_examples(workflow, draw_stories(count, seed))
    folder.mkdir(parents=True, exist_ok=True)
    for agent, written in rows.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in written[: counts[agent]])
        (folder / f"{agent}.jsonl").write_text(lines, encoding="utf-8")
    card = {"files": {agent: {"file": f"{agent}.jsonl", "rows": counts[agent]} for agent in rows}}
    (folder / "dataset.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    told = ", ".join(f"{number} for {agent}" for agent, number in counts.items())
    click.echo(f"wrote examples to {folder}: {told}")
    click.echo(f"Next: mappa warm-start --plugin mathchat --recipe smol --examples {folder}")


def _parse_counts(words: Sequence[str], agents: Iterable[str], most: int) -> Mapping[str, int]:
    counts = {}
    for word in words:
        agent, _, number = word.partition("=")
        if agent not in agents or not number.isdecimal() or not 1 <= int(number) <= most:
            named = ", ".join(agents)
            raise ConfigError(
                f"--agent {word}: say AGENT=N, one of {named} and how many of the {most} examples it gets"
            )
        counts[agent] = int(number)
    return counts


def draw_stories(count: int, seed: int) -> tuple[Story, ...]:
    """Draw `count` different stories that are not held out, others than a training on the stories draws first."""
    from mappa_mathchat.stories import generate_stories

    drawn = (story for story in generate_stories(Random(f"{seed}/examples")) if not story.held_out)
    return tuple(islice(_distinct(drawn), count))


def _distinct(stories: Iterator[Story]) -> Iterator[Story]:
    seen: set[str] = set()
    for story in stories:
        if story.text not in seen:
            seen.add(story.text)
            yield story


def write_examples(workflow: MathChat, stories: Sequence[Story]) -> Mapping[str, Sequence[Row]]:
    """Write a faultless play of each story, by agent: the prompts are those that `workflow` shows in a run."""
    from mappa_core import ToolCall, ToolResult
    from mappa_core.sandbox import PYTHON
    from mappa_core.workflow import Contribution
    from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER

    rows: dict[str, list[Row]] = {agent: [] for agent in workflow.agents}
    for story in stories:
        value = str(story.plan.value)
        printed = ToolResult(tool=PYTHON, status="ok", exit_code=0, stdout=f"{value}\n")
        results = workflow.templates.render_results([ToolCall(name=PYTHON)], [printed])
        texts = {SOLVER: story.solution, CODER: story.plan.program, VERIFIER: f"\\boxed{{{value}}}"}
        earlier: list[Contribution] = []
        for agent, text in texts.items():
            rows[agent].append(_row(workflow.build_prompt(agent, story.text, earlier), text))
            earlier.append(Contribution(agent=agent, text=text, results=results if agent == CODER else ""))
    return rows


def _row(prompt: str, text: str) -> Row:
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": text}],
    }
