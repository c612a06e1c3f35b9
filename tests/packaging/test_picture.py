"""The picture of README is of the viewer as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

from mappa.look.demo import unpack_demo

ROOT = Path(__file__).parents[2]


def test_the_picture_shows_the_page_as_it_is_today(tmp_path):
    script = runpy.run_path(str(ROOT / "release/screenshot.py"))
    picture = script["PICTURE"].read_bytes()
    assert script["page_in"](picture) == script["page_of"](unpack_demo(tmp_path)), "python release/screenshot.py"
    assert picture.startswith(b"\x89PNG") and len(picture) < 200_000
    assert f"]({script['PICTURE'].relative_to(ROOT)})" in (ROOT / "README.md").read_text()


def test_a_hash_is_kept_in_a_picture():
    script = runpy.run_path(str(ROOT / "release/screenshot.py"))
    bare = b"\x89PNG...\0\0\0\0IEND\xaeB`\x82"
    assert script["page_in"](bare) is None
    assert script["page_in"](script["with_page"](bare, "0" * 64)) == "0" * 64
