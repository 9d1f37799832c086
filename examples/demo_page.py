"""The page of `examples.demo`: one HTML file with the figures inside, which needs nothing else."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Mapping, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture with its title and what is to be seen on it."""

    title: str
    path: Path
    caption: str


def page(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    figures: Sequence[Figure],
    details: Mapping[str, str],
) -> str:
    """The whole page.

    Args:
        title: Of the page.
        header: Of the table.
        rows: Of the table.
        figures: In their order.
        details: Long texts by their titles, folded away.
    """
    parts = [_HEAD.format(title=html.escape(title)), f"<h1>{html.escape(title)}</h1>"]
    parts += [f"<p>{html.escape(_ABOUT)}</p>", _table(header, rows)]
    parts += [_figure(figure) for figure in figures]
    parts += [
        f"<details><summary>{html.escape(name)}</summary><pre>{html.escape(text)}</pre></details>"
        for name, text in details.items()
    ]
    return "\n".join([*parts, "</body></html>", ""])


_ABOUT = (
    "The task: predict the eccentricity of every node of a random graph, the distance to the farthest node. All models "
    "were trained alike, on the same graphs, and in all of them messages go ten edges far; TANGO's coefficients and "
    "its projection see the whole graph besides. The metric is the base-10 logarithm of the mean squared error, with "
    "the weights of the best epoch on the validation set; lower is better. One run with one seed."
)
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 16px/1.55 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #1f2328 }}
table {{ border-collapse: collapse; margin: 1.5em 0; font-variant-numeric: tabular-nums }}
th, td {{ padding: .35em .9em; border-bottom: 1px solid #d1d9e0; text-align: right; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left }}
figure {{ margin: 1em 0 }}
img {{ max-width: 100% }}
figcaption {{ color: #57606a }}
summary {{ cursor: pointer; margin: .4em 0 }}
pre {{ overflow-x: auto; background: #f6f8fa; padding: 1em; font-size: 13px }}
</style></head><body>"""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _figure(figure: Figure) -> str:
    picture = base64.b64encode(figure.path.read_bytes()).decode()
    title, caption = html.escape(figure.title), html.escape(figure.caption)
    image = f'<img src="data:image/png;base64,{picture}" alt="{title}">'
    return f"<h2>{title}</h2><figure>{image}<figcaption>{caption}</figcaption></figure>"
