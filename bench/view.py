"""Every page of `mappa view` over a run of 100,000 steps against the same page over one of 1,000.

Both runs are by `stores.py`: hostile text, twelve turns, ensembles, failures. Pages are asked for in one process,
through the whole application, in turns: the short run, the long one, again. Filters are such that they fill a page in
both, or leave the same few. Seconds are those of the request, by the clock; the ratio of a page is that of the medians
over all rounds. The last line has the page with the greatest ratio, and the interval of its ratio by rounds.

    python bench/view.py [--steps 100000] [--rounds 15] [--root FOLDER]

With `--root`, runs are taken from the folder where they are there, and left there. Writing the long run takes minutes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np
from measure import parse_arguments, print_result
from starlette.testclient import TestClient
from stores import fill

from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunReader

SHORT = 1_000


def client_of(run: Path) -> TestClient:
    client = TestClient(create_app(RunFolders([run]), token="bench"), base_url="http://127.0.0.1")
    client.get("/?token=bench")
    return client


def pages_of(run: Path) -> Mapping[str, str]:
    """Addresses by what they show."""
    with RunReader(run) as reader:
        rows = list(reader.trajectories.where(iteration=0))
        one = next(row.id for row in rows if row.steps == 12 and row.iteration == 0)
        middle = reader.number(rows[40].id) if run.name == "short" else len(list(reader.iterations)) * 32
    here = f"/runs/{run.name}"
    listed = f"{here}/trajectories"
    return {
        "overview": "/",
        "trajectories": listed,
        "trajectories, further down": f"{listed}?before={middle}",
        "by agent and blame": f"{listed}?agent=coder&blame=coder",
        "by score": f"{listed}?agent=planner&low=2&high=8",
        "by disagreement": f"{listed}?disagreement=3",
        "by outcome": f"{listed}?outcome=full:correct",
        "by failure, in one iteration": f"{listed}?iteration=0&failure=ToolError",
        "by a common word": f"{listed}?words=table",
        "by two words and a filter": f"{listed}?words=table+region&column=said&agent=coder",
        "by a word that is nowhere": f"{listed}?words=nowhere",
        "newer ones": f"{here}/newer?after={middle}",
        "one trajectory": f"{here}/trajectory?id={quote(one, safe='')}",
        "one trajectory, filtered": f"{here}/trajectory?id={quote(one, safe='')}&blame=coder&words=table",
        "a prompt": f"{here}/prompt?step={quote(one + '/11', safe='')}",
        "coach": f"{here}/coach",
        "policies": f"{here}/policies",
    }


def seconds(client: TestClient, address: str) -> float:
    started = time.perf_counter()
    answer = client.get(address)
    taken = time.perf_counter() - started
    assert answer.status_code == 200, (address, answer.text[:500])
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--root", type=Path)
    asked = parse_arguments(parser, rounds=1, steps=2_000)
    with tempfile.TemporaryDirectory() as scratch:
        root = asked.root or Path(scratch)
        runs = {}
        for name, steps in (("short", SHORT), ("long", asked.steps)):
            runs[name] = root / name
            if not runs[name].is_dir():
                fill(root, name, steps)
        clients = {name: client_of(run) for name, run in runs.items()}
        pages = {name: pages_of(run) for name, run in runs.items()}
        taken: dict[str, dict[str, list[float]]] = {page: {"short": [], "long": []} for page in pages["short"]}
        for number in range(asked.rounds + 1):
            for page, by_run in taken.items():
                for name, found in by_run.items():
                    spent = seconds(clients[name], pages[name][page])
                    if number:  # the first round warms up
                        found.append(spent)
    told(taken)


def told(taken: Mapping[str, Mapping[str, list[float]]]) -> None:
    """A line a page, then the worst."""
    ratios = {page: np.median(found["long"]) / np.median(found["short"]) for page, found in taken.items()}
    print(f"{'page':32} {'short ms':>9} {'long ms':>9} {'ratio':>6}")
    for page, found in taken.items():
        short, long = (1e3 * np.median(found[name]) for name in ("short", "long"))
        print(f"{page:32} {short:9.1f} {long:9.1f} {ratios[page]:6.2f}")
    worst = max(ratios, key=lambda page: ratios[page])
    rounds = np.asarray(taken[worst]["long"]) / np.asarray(taken[worst]["short"])
    print_result("view", rounds, unit=f"server time of the page '{worst}'", against="a run of 1,000 steps")


if __name__ == "__main__":
    main()
