"""Charts as one picture: a file of SVG, which notebooks show."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from mappa.look.view.chart import WIDTH, Chart
from mappa.look.view.visible_text import finalize
from mappa_core.files import write_atomic

TITLE_HEIGHT, TITLE_Y, LEGEND_Y = 50, 20, 42
"""Pixels above a chart for its title and the names of its lines, and the baselines of both in them."""


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """A picture as SVG. A notebook shows it; `save` writes it to a file."""

    title: str
    svg: str = field(repr=False)

    def save(self, path: Path | str) -> Path:
        """Write the picture to a file of SVG, such as `gain.svg`, and return its path. Raises RunError where it cannot
        be written."""
        write_atomic(Path(path), self.svg)
        return Path(path)

    def __repr__(self) -> str:
        return f"Picture({self.title!r}): save('NAME.svg') writes it"

    def _repr_html_(self) -> str:
        # As an image and not inline: its styles are for its own elements and not for those of the notebook.
        data = b64encode(self.svg.encode()).decode()
        style = "max-width: 100%; height: auto"
        return f'<img alt="{escape(self.title)}" style="{style}" src="data:image/svg+xml;base64,{data}"/>'


def draw_picture(charts: Sequence[Chart]) -> Picture:
    """Draw charts below each other."""
    environment = Environment(
        loader=PackageLoader("mappa.look.view"), autoescape=True, undefined=StrictUndefined, finalize=finalize
    )
    placed, top = [], 0
    for chart in charts:
        placed.append((chart, top))
        top += TITLE_HEIGHT + chart.height
    svg = environment.get_template("picture.svg").render(
        placed=placed, width=WIDTH, height=top, title_height=TITLE_HEIGHT, title_y=TITLE_Y, legend_y=LEGEND_Y
    )
    return Picture(title="; ".join(chart.title for chart in charts), svg=svg.strip())
