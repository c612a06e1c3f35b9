"""What documents say of the house is what is held to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_picture_of_both_houses_shows_the_floors_that_are_checked():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    picture = text.split("<!-- the house -->\n```\n")[1].split("```")[0]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {tuple(one["containers"]): one["layers"] for one in contracts if one["type"] == "layers"}
    walls = [re.search(r"│(?P<floor>[ a-z_│]+)│", line) for line in picture.splitlines()]
    floors = [" | ".join(wall["floor"].replace("│", " ").split()) for wall in walls if wall and wall["floor"].strip()]
    assert floors == [*layers["mappa",], *layers["mappa_core",]]


def test_the_citation_is_whole():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    assert citation["license"] == "MIT" and citation["type"] == "software"
