"""Install the wheels of dist/ into empty environments, as strangers would, and use them where no repository is.

lowest    core with the lowest versions that it promises: the light part of the tests
core      core and a provider with the newest versions there are, without torch: the same tests; then a third party's
          team and coach train with one agent behind an API and with all of them there, a third party's engine learns;
          commands and offers of missing parts say what to install
training  `pip install mappa-dsbench` with the versions of constraints.txt: `mappa train`
all       every wheel: `mappa doctor`, `mappa observe` of a team behind an API and of the run that this left,
          `mappa train` and the report of it, the commands of every part
minute    what README shows people who have logs, command by command: who failed, in which step, and why
pages     every wheel: README, the tutorials, the how-tos and all other pages are followed as they are written

`python release/install.py [lowest] [core] [training] [all] [minute] [pages]` tries those that are named, or all of
them, after `make dist`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any

from version import ROOT, current

DIST = ROOT / "dist"
LIGHT = ("config", "credit", "store", "coaching", "calls")
"""Folders of tests that need core's light dependencies alone."""
PARTS = ("engine", "sandbox", "calibration", "batch", "gateway", "gepa", "mcp")
TESTING = ("hypothesis", "pytest-timeout", "pytest-xdist")
"""What these tests need beside the extra `test`."""
PYTHON = "```python\nprint(6 * 7)\n```"


class Environment:
    """A virtual environment in `folder`, empty but for pip, and an empty folder beside it where its programs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder.with_name(f"{folder.name}-here")
        self.place.mkdir()
        venv.create(folder, with_pip=True)

    def install(self, *requirements: str, constraints: Path | None = None, options: tuple[str, ...] = ()) -> None:
        """Install from the registry that pip is set up for, and our own distributions from dist/ alone."""
        limits = () if constraints is None else ("--constraint", str(constraints))
        # Most of what is installed is never imported here, so nothing is compiled before it is.
        self.run("pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile", "--find-links", str(DIST),
                 *limits, *options, *requirements)  # fmt: skip

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment prints, which is shown where it fails."""
        done = self._run(program, *arguments)
        if done.returncode:
            print(done.stdout[-8000:], done.stderr[-8000:], sep="\n", file=sys.stderr)
            raise SystemExit(f"{program} {' '.join(arguments)} ended with exit code {done.returncode}")
        return done.stdout

    def refuse(self, words: str, program: str, *arguments: str) -> None:
        """Hold a program to refusing wrong input: exit code 2, no traceback, and `words` in what it says."""
        done = self._run(program, *arguments)
        if done.returncode != 2 or words not in done.stderr or "Traceback" in done.stderr:
            print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
            raise SystemExit(f"{program} {' '.join(arguments)}: exit code {done.returncode}, not 2 with {words!r}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        environment |= {"PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", "PATH": path, "COLUMNS": "400"}
        command = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True)

    def check(self, *, torch: bool) -> None:
        """Hold the environment to what it is to be: core of this version from its wheel, with or without torch."""
        program = (
            "import json, importlib.util as found, mappa_core; "
            "print(json.dumps([mappa_core.__version__, mappa_core.__file__, found.find_spec('torch') is not None]))"
        )
        version, file, has_torch = json.loads(self.run("python", "-c", program))
        if version != current() or self.folder not in Path(file).parents or has_torch != torch:
            raise SystemExit(f"{self.folder.name}: mappa-core {version} from {file}, torch: {has_torch}")

    def light_tests(self) -> None:
        """Run a copy of the light tests; the repository is nowhere near."""
        for name in (
            "pyproject.toml",
            "conftest.py",
            "tests/third_party",
            "tests/fixtures",
            *(f"tests/{folder}" for folder in LIGHT),
        ):
            copy = self.place / name
            copy.parent.mkdir(exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy, ignore=needs_parts)
            else:
                shutil.copy(ROOT / name, copy)
        shown = self.run("pytest", "-p", "no:cacheprovider", "--numprocesses=2", "--dist=worksteal", "tests")
        print(f"  {shown.splitlines()[-1]}")


def needs_parts(folder: str, names: list[str]) -> list[str]:
    """Tests that use other distributions of the project than core."""
    others = re.compile(r"\bmappa_(?!core\b)[a-z]+\b(?=[.\s/])")
    tests = [name for name in names if name.startswith("test_") and name.endswith(".py")]
    return [name for name in tests if others.search((Path(folder) / name).read_text())]


def lowest(environment: Environment) -> None:
    environment.install("mappa[test]", *TESTING, constraints=ROOT / "constraints-lowest.txt")
    environment.check(torch=False)
    environment.light_tests()


def core(environment: Environment) -> None:
    """Core alone: its front and families are imported, its offers load, and nothing of the application is there."""
    environment.install("mappa-core")
    environment.check(torch=False)
    families = ", ".join(
        f"mappa_core.{family}" for family in ("coach", "data", "engine", "sandbox", "transport", "workflow")
    )
    environment.run(
        "python",
        "-c",
        f"import importlib.util as found, mappa_core, {families}\n"
        "from mappa_core.plugins import load_plugins\n"
        "assert all(getattr(mappa_core, name) is not None for name in mappa_core.__all__)\n"
        "assert load_plugins().names('estimators') and found.find_spec('mappa') is None",
    )
    print("  front, families and offers of core alone")


def application(environment: Environment) -> None:
    strangers = [environment.place / name for name in ("acme_doubles", "acme_numpy")]
    for folder in strangers:
        shutil.copytree(ROOT / "tests/third_party" / folder.name, folder)
    environment.install("mappa[test]", "mappa-coach-openai", *map(str, strangers), *TESTING)
    environment.check(torch=False)
    environment.light_tests()
    words = ("--json", "run.root=runs", "train.iterations=2", "train.samples=2", "eval.problems=2")
    with answering() as url:
        policy = json.dumps(api_policy(url))
        for name, team in (("mixed", f"policies.checker={policy}"), ("doubles", f"policies={{default: {policy}}}")):
            shown = environment.run("mappa", "train", "--plugin", "doubles", "--name", name, *words, team)
            trained = json.loads(shown.splitlines()[-1])
            if trained["iterations"] != 2:
                raise SystemExit(f"trained something else than two iterations: {trained}")
        environment.run("mappa", "eval", "--run", "runs/mixed", "--json")
    environment.run("mappa", "runs", "show", "runs/doubles")
    learned = environment.run("mappa", "train", "--plugin", "tables", "--json", "run.root=runs").splitlines()[-1]
    accuracy = json.loads(learned)["eval"]
    if accuracy["before"]["high"] >= accuracy["after"]["low"]:
        raise SystemExit(f"a third party's engine has learned nothing: {accuracy}")
    environment.refuse('pip install "mappa-gepa"', "mappa", "advise", "runs/doubles")
    environment.refuse('pip install "mappa[view]"', "mappa", "view", "runs")
    environment.refuse('pip install "mappa-calibration[jury]"', "mappa", "coach", "calibrate")
    environment.refuse('pip install "mappa-engine"', "mappa", "train", "--plugin", "doubles", "engine.use=local")
    tool = "tools.python={use: python, limits: {wall_s: 5}}"
    environment.refuse('pip install "mappa-sandbox"', "mappa", "train", "--plugin", "doubles", tool)
    print("  trained a third party's team; missing parts are named")


def training(environment: Environment) -> None:
    pinned = install_torch(environment)
    environment.install("mappa-dsbench", constraints=pinned)
    environment.check(torch=True)
    words = ("train.iterations=2", "train.prompts=2", "eval.problems=4", "run.root=runs")
    shown = environment.run("mappa", "train", "--plugin", "dsbench", "--json", *words)
    trained = json.loads(shown.splitlines()[-1])
    if trained["iterations"] != 2:
        raise SystemExit(f"trained something else than two iterations: {trained}")
    print(f"  trained {trained['iterations']} iterations")


def all_wheels(environment: Environment) -> None:
    install_all(environment)
    environment.run("python", "-c", "; ".join(("import mappa", *(f"import mappa_{part}" for part in PARTS))))
    environment.run("mappa", "doctor")
    with answering() as url:
        words = ("eval.problems=4", "run.root=runs", f"policies.default={json.dumps(api_policy(url))}")
        played = json.loads(environment.run("mappa", "observe", "--plugin", "mathchat", "--json", *words))
    stored = json.loads(environment.run("mappa", "observe", played["folder"], "--json"))
    actions = {name: agent["actions"] for name, agent in played["agents"].items()}
    if played["rollouts"] != 4 or set(actions.values()) != {4}:
        raise SystemExit(f"observed something else than four rollouts, an action of each agent in each: {played}")
    if stored["agents"] != played["agents"]:
        raise SystemExit(f"the stored run shows something else than was played: {stored}")
    words = ("train.iterations=1", "train.prompts=2", "eval.problems=2", "run.root=runs")
    environment.run("mappa", "train", "--plugin", "mathchat", "--name", "trained", *words)
    environment.run("mappa", "report", "runs/trained")
    for command in (
        "view",
        "gateway",
        "sandbox",
        "plan",
        "export",
        "import",
        "compare",
        "sweep",
        "coach",
        "judge",
        "advise",
        "improve",
    ):
        environment.run("mappa", command, "--help")
    print(f"  observed the actions of {', '.join(actions)}; every part is there")


def minute(environment: Environment) -> None:
    """Type the command of README in a folder that has a log of LangGraph, and hold it to 20 seconds."""
    block = re.search(r"```bash\n(pip install mappa\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    installed, *commands = (shlex.split(line) for line in block[1].splitlines()) if block else ()
    environment.install(*installed[2:])
    environment.check(torch=False)
    shutil.copy(ROOT / "tests/fixtures/first_minute/langgraph.jsonl", environment.place / "LOG")
    began = time.monotonic()
    *_, shown = (environment.run(*command) for command in commands)
    took = time.monotonic() - began
    told = {"who": r"\banalyst .* 3 of 3 ", "in which step": r"analyst +3 times, first \S+/001", "why": r"\b165\b"}
    missing = [name for name, pattern in told.items() if not re.search(pattern, shown)]
    if missing or len(commands) > 1 or took > 20:
        raise SystemExit(f"{len(commands)} commands in {took:.0f} s, and not told: {missing}\n{shown}")
    print(f"  {len(commands)} command says who, in which step and why, {took:.1f} s after the install")


def pages(environment: Environment) -> None:
    """Follow the pages from a copy of the repository that has none of its packages."""
    install_all(environment, "--requirement", str(ROOT / "requirements/test.txt"))
    copy = environment.place / "pages"
    shutil.copytree(ROOT, copy, ignore=packages_and_builds)
    # The application's package is its project's folder, too: what describes the project belongs to the pages.
    (copy / "mappa").mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / "mappa" / name, copy / "mappa")
    test = f"{copy.name}/tests/docs/test_samples.py"
    shown = environment.run("pytest", "-p", "no:cacheprovider", "--numprocesses=2", "--dist=worksteal", test)
    print(f"  {shown.splitlines()[-1]}")


def packages_and_builds(folder: str, names: list[str]) -> list[str]:
    """The packages in a folder of the repository, and what is no source."""
    built = ("dist", "site", "runs", "__pycache__")
    return [
        name for name in names if name in built or name.startswith(".") or (Path(folder) / name / "py.typed").is_file()
    ]


def install_all(environment: Environment, *further: str) -> None:
    """Install every wheel, and what else is asked for, with the versions that are pinned."""
    pinned = install_torch(environment)
    projects = (tomllib.loads(file.read_text())["project"]["name"] for file in ROOT.glob("plugins/*/pyproject.toml"))
    environment.install("mappa[data,view]", *projects, *further, constraints=pinned)
    environment.check(torch=True)


def install_torch(environment: Environment) -> Path:
    """Install torch first and alone, so that nothing asks the registry for a build with CUDA; return what is pinned."""
    pinned = ROOT / "constraints.txt"
    environment.install("torch", constraints=pinned)
    return pinned


def api_policy(url: str) -> dict[str, Any]:
    """A policy behind the API at `url`."""
    return {"kind": "api", "use": "openai", "options": {"model": "any", "base_url": url, "api_key_env": None}}


WAYS: Mapping[str, Callable[[Environment], None]] = MappingProxyType(
    {
        "lowest": lowest,
        "core": core,
        "application": application,
        "training": training,
        "all": all_wheels,
        "minute": minute,
        "pages": pages,
    }
)


@contextmanager
def answering() -> Iterator[str]:
    """A server that speaks OpenAI's API and gives every agent the same answer; where its `/v1` is."""

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(completion()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion() -> dict[str, Any]:
    """A reply as the chat API gives it."""
    message = {"role": "assistant", "content": PYTHON}
    usage = {"prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "any", "choices": [choice], "usage": usage}


def main(arguments: list[str]) -> int:
    unknown = sorted(set(arguments) - set(WAYS))
    if unknown or not any(DIST.glob(f"mappa_core-{current()}-*.whl")):
        print(f"usage: python release/install.py [{'] ['.join(WAYS)}], after make dist", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="mappa-dist-") as folder:
        for name in arguments or WAYS:
            began = time.monotonic()
            print(name, flush=True)
            WAYS[name](Environment(Path(folder) / name))
            print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
