"""Tables and pages in Markdown and HTML, which reports are made of."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #1f2328 }
table { border-collapse: collapse; margin-bottom: 2em; font-variant-numeric: tabular-nums }
th, td { padding: .3em .8em; border-bottom: 1px solid #d1d9e0; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
"""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table.

    >>> print("\\n".join(markdown_table(["a", "b"], [["1", "x|y"]])))
    | a | b |
    | --- | --- |
    | 1 | x\\|y |
    """
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines]


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, with what it holds escaped.

    >>> html_table(["a"], [["x < y"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>x &lt; y</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_page(title: str, parts: Iterable[str]) -> str:
    """One page that needs nothing else."""
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
    return "\n".join([f"{head}<style>{_STYLE}</style></head><body>", *parts, "</body></html>", ""])
