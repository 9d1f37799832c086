"""Run every benchmark and say which claims the figures measured now reach.

A benchmark reports; it is not a test. The exit code is 0 also where a claim is not reached.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import re
from pathlib import Path

import torch
from report import Claim, print_table, rounds_argument, show

NAMES = (
    "fixed_step", "adaptive", "per_system", "compile", "field", "imports", "tango", "memory", "loading", "epoch",
)  # fmt: skip
README = Path(__file__).parents[1] / "README.md"
MARKS = "<!-- measured by `benchmarks/run.py --readme`; do not edit -->", "<!-- end of measured -->"


def write_readme(found: list[tuple[str, Claim]], rounds: int) -> None:
    """Put the figures into the README, between its marks."""
    rows = ["| figure | claim | measured | | worst case |", "|---|---|---|---|---|"]
    for _, claim in found:
        rows.append(f"| {claim.text} | {claim.bound} | {claim.value} | {claim.verdict} | {claim.case} |")
    machine = f"one thread of {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}"
    note = f"Medians of {rounds} interleaved rounds, of 7 for training steps of graph networks, on {machine}."
    begin, end = MARKS
    text, count = re.subn(
        re.escape(begin) + ".*" + re.escape(end),
        lambda _: "\n".join([begin, "", *rows, "", note, "", end]),
        README.read_text(),
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"{README.name} has no place for the figures: it needs the lines {begin} and {end}")
    README.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append", help="run this one; may be repeated")
    parser.add_argument("--readme", action="store_true", help="write the summary into the README (all benchmarks only)")
    rounds_argument(parser)
    arguments = parser.parse_args()
    if arguments.readme and arguments.only:
        parser.error("--readme wants the figures of all benchmarks, so it does not go with --only")
    found: list[tuple[str, Claim]] = []
    for name in arguments.only or NAMES:
        print(f"\n{'=' * 30} {name} {'=' * 30}\n")
        script = importlib.import_module(name)
        found += [(name, claim) for claim in show(script.__doc__, script.measure, arguments.rounds)]
    rows = [[claim.text, name, claim.bound, claim.value, claim.verdict, claim.case] for name, claim in found]
    print_table("Summary", ("figure", "script", "claim", "measured", "", "case"), rows)
    if arguments.readme:
        write_readme(found, arguments.rounds)
    claims = [claim for _, claim in found if claim.is_bounded]
    missed = sum(not claim.reached for claim in claims)
    print(f"\n{len(claims) - missed} of {len(claims)} claims reached" + (f", {missed} NOT REACHED" if missed else ""))


if __name__ == "__main__":
    main()
