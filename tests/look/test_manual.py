"""The pages in the terminal, ranked, and as one file for language models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.look.manual import CHECKOUT, index_pages, join_pages, locate_pages, read_pages, split_pages
from mappa.look.manual_search import MAX_PAGES, find_pages

QUESTIONS = {
    "how do I import logs of langgraph": {"import.md"},
    "is the difference between two runs significant": {"compare.md"},
    "sweep learning rates over seeds": {"compare.md"},
    "reward per action or by the outcome": {"how-to/process-or-outcome.md"},
    "which agent is to blame": {"how-to/blame.md"},
    "rules of the evidence coach": {"plugins/mappa-coach-evidence.md"},
    "write my own coach": {"tutorials/coach.md"},
    "write my own team of agents": {"tutorials/team.md"},
    "train an existing agent written with another framework": {"gateway.md"},
    "how much will a run cost": {"how-to/costs.md", "plan.md"},
    "will the model fit into the memory of my GPU": {"plan.md", "engines.md"},
    "run on several machines": {"how-to/nodes.md"},
    "what is a stratum": {"overview.md"},
    "log metrics to wandb": {"plugins/mappa-trackers.md"},
    "use gemini as a coach": {"plugins/mappa-coach-gemini.md"},
    "fields of Experience for an estimator": {"reference/hooks.md"},
    "what does exit code 3 mean": {"reference/exit-codes.md"},
    "export preference pairs for DPO": {"data.md"},
    "isolate programs of agents with bubblewrap": {"sandbox.md"},
    "fit a coach to ten labels": {"how-to/label.md"},
}
"""Questions of newcomers, written before there was a ranking, and the pages that answer them."""


def test_joined_pages_come_apart_again(tmp_path):
    (tmp_path / "docs/how-to").mkdir(parents=True)
    (tmp_path / "plugins/acme_team").mkdir(parents=True)
    (tmp_path / "docs/index.md").write_text("# One\ntext of [a team](../plugins/acme_team/README.md)\n")
    (tmp_path / "docs/how-to/two.md").write_text("# Two\n\n<!-- tested: here -->\nmore\n")
    (tmp_path / "plugins/acme_team/README.md").write_text("# acme-team\n\nunlike the others\n")
    pages = split_pages(join_pages(locate_pages(tmp_path)))
    assert list(pages) == ["how-to/two.md", "index.md", "plugins/acme-team.md"]
    assert pages["how-to/two.md"] == "# Two\n\nmore\n"
    index = index_pages(pages)
    assert "- [Two](how-to/two.html)" in index and "acme" not in index
    assert find_pages(pages, "two") == find_pages(pages, "more") == ["how-to/two.md"]
    assert find_pages(pages, "which is unlike") == find_pages(pages, "acme-team") == ["plugins/acme-team.md"]
    assert find_pages(pages, "a team")[0] == "plugins/acme-team.md"
    assert find_pages(pages, "three") == find_pages(pages, "?") == []


def test_a_folder_without_pages_is_no_checkout(tmp_path):
    with pytest.raises(ValueError, match="has no pages: build mappa in a checkout"):
        locate_pages(tmp_path)


def test_every_page_of_the_documents_and_every_plugin_is_there():
    docs = {path.relative_to(CHECKOUT / "docs").as_posix() for path in (CHECKOUT / "docs").rglob("*.md")}
    plugins = {path.parent.name.replace("_", "-") for path in CHECKOUT.glob("plugins/*/pyproject.toml")}
    assert set(read_pages()) == docs | {f"plugins/{name}.md" for name in plugins}


def test_the_first_page_answers_nine_questions_of_ten():
    pages = read_pages()
    assert all(answers <= pages.keys() for answers in QUESTIONS.values())
    found = {question: find_pages(pages, question) for question in QUESTIONS}
    missed = {question: found[question][:3] for question, right in QUESTIONS.items() if found[question][0] not in right}
    assert len(missed) <= len(QUESTIONS) // 10, missed


def test_docs_command_prints_pages_and_topics_and_refuses_unknown_topics(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["docs", "gateway"]) == 0
    assert capsys.readouterr().out.startswith("# Bring an existing agent")
    assert main(["docs", "mappa-coach-evidence"]) == 0
    assert "| wrong sum |" in capsys.readouterr().out
    assert main(["docs", "learning", "rate"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert 3 < len(listed) <= MAX_PAGES + 1 and max(map(len, listed)) <= 80
    assert main(["docs", "import", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["import.md"]
    assert main(["docs", "quantum", "chromodynamics"]) == 2
    assert "no page mentions 'quantum chromodynamics'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_wheel_that_pip_builds_of_a_checkout_has_the_pages_and_all_of_the_package(tmp_path):
    """The wheel is unpacked where no repository is, and asked: it comes before the checkout on the path."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, CHECKOUT / "mappa"],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("mappa-*.whl")
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--target", tmp_path / "site", wheel], check=True, capture_output=True
    )
    package = CHECKOUT / "mappa"
    code = {path.relative_to(CHECKOUT) for path in package.rglob("*.py")} - {Path("mappa/hatch_build.py")}
    assert code == {path.relative_to(tmp_path / "site") for path in (tmp_path / "site/mappa").rglob("*.py")}
    done = subprocess.run(
        [sys.executable, "-m", "mappa", "docs", "rules", "of", "the", "evidence", "coach", "--json"],
        env={"PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert next(iter(found)) == "plugins/mappa-coach-evidence.md"
    assert found.items() <= read_pages().items()
    assert (tmp_path / "site/mappa/look/manual.md").read_text() == join_pages(locate_pages(CHECKOUT))
