"""Tables, claims, and the frame that all benchmark scripts share."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from timing import DEFAULT_ROUNDS, MIN_ROUNDS

Measure = Callable[[int], list["Claim"]]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A figure with its bound, or without one: then it is only shown.

    A figure that could not be measured is NaN and reaches no bound.
    """

    text: str
    figure: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "x"
    case: str = ""

    @property
    def is_bounded(self) -> bool:
        return self.at_most is not None or self.at_least is not None

    @property
    def reached(self) -> bool:
        above = self.at_least is None or self.figure >= self.at_least
        below = self.at_most is None or self.figure <= self.at_most
        return above and below and not math.isnan(self.figure)

    @property
    def verdict(self) -> str:
        if not self.is_bounded:
            return "shown"
        return "reached" if self.reached else "NOT REACHED"

    @property
    def bound(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:.3g}{self.unit}"
        return "-" if self.at_most is None else f"<= {self.at_most:.3g}{self.unit}"

    @property
    def value(self) -> str:
        return f"{self.figure:.3g}{self.unit}"

    def line(self) -> str:
        where = f" [{self.case}]" if self.case else ""
        verdict = f" ({self.bound}, {self.verdict})" if self.is_bounded else ""
        return f"{self.text} {self.value}{verdict}{where}"


def largest(text: str, figures: dict[str, float], at_most: float | None = None, unit: str = "x") -> Claim:
    """The largest of the figures, with the case that it belongs to."""
    case = max(figures, key=lambda name: figures[name])
    return Claim(text, figures[case], at_most=at_most, unit=unit, case=case)


def smallest(text: str, figures: dict[str, float], at_least: float | None = None, unit: str = "x") -> Claim:
    """The smallest of the figures, with the case that it belongs to."""
    case = min(figures, key=lambda name: figures[name])
    return Claim(text, figures[case], at_least=at_least, unit=unit, case=case)


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the first column is aligned to the left, the others to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    print(f"\n{title}")
    for k, line in enumerate(lines):
        cells = [line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]
        print("  " + "  ".join(cells))
        if k == 0:
            print("  " + "  ".join("-" * width for width in widths))


def rounds_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=_rounds, default=DEFAULT_ROUNDS, help=f"at least {MIN_ROUNDS}")


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < MIN_ROUNDS:
        raise argparse.ArgumentTypeError(f"at least {MIN_ROUNDS} rounds are needed, got {rounds}")
    return rounds


def main(description: str | None, measure: Measure) -> None:
    """Run one script: its claim, its tables, and the ratios as its last line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    rounds_argument(parser)
    show(description, measure, parser.parse_args().rounds)


def show(description: str | None, measure: Measure, rounds: int) -> list[Claim]:
    """Print a benchmark's claim, tables and ratios."""
    torch.set_num_threads(1)
    print((description or "").strip())
    claims = measure(rounds)
    print()
    print("ratio: " + "; ".join(claim.line() for claim in claims))
    return claims
