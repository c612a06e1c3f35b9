"""What the page on importing shows is run, and every option is in its table."""

import json
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from mappa.cli.main import cli
from mappa.runs import RunReader

PAGE = (Path(__file__).parents[2] / "docs" / "import.md").read_text("utf-8")


def test_the_log_of_the_page_is_imported_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("chats.jsonl").write_text(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])
    command, *_ = re.findall(r"```bash\nmappa (.*?)```", PAGE, re.DOTALL)
    told = CliRunner().invoke(cli, [*shlex.split(command.replace("\\\n", "")), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["agents"] == {"planner": 2, "writer": 2}
    with RunReader(Path("runs/imported")) as reader:
        rows = list(reader.trajectories)
    assert [(row.stratum, row.outcome) for row in rows] == [("physics", {"correct": 1.0}), ("sums", {"correct": 0.0})]
    rows = [json.loads(line) for line in Path("runs/imported/tasks.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["How heavy is the sun?", "What is 7 * 8?"]


def test_every_option_that_maps_is_in_the_table():
    options = {name for option in cli.get_command(None, "import").params for name in option.opts}
    named = set(re.findall(r"`(--[\w-]+)", PAGE))
    assert named <= options | {"--coach", "--audit"}
    assert options - named == {"--root", "--name", "--json", "--trust", "files"} - (named & {"--name"})
