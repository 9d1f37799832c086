"""What the examples share: headings, paragraphs and tables on the terminal, and the way to their figures."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Sequence
from types import ModuleType

WIDTH = 96


def heading(text: str) -> None:
    print(f"{text}\n{'-' * len(text)}\n")


def say(text: str, indent: int = 0) -> None:
    """A paragraph, followed by an empty line."""
    space = " " * indent
    print(textwrap.fill(text, WIDTH, initial_indent=space, subsequent_indent=space) + "\n", flush=True)


def table(align: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be, each to the left or to the right by its letter, l or r, in `align`."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        columns = zip(line, widths, align, strict=True)
        cells = [cell.ljust(width) if side == "l" else cell.rjust(width) for cell, width, side in columns]
        print(("  " + "  ".join(cells)).rstrip())
    print(flush=True)


def find_figures(name: str) -> ModuleType | None:
    """The module that draws, where matplotlib is installed."""
    try:
        return importlib.import_module(f"examples.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "matplotlib":
            raise
        return None
