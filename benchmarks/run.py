"""Run every benchmark and say which claims the figures measured now reach.

A benchmark reports; it is not a test. The exit code is 0 also where a claim is not reached.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import platform
import re
from pathlib import Path
from typing import Any

import torch
from report import Claim, print_table, rounds_argument, show

NAMES = (
    "fixed_step", "adaptive", "per_system", "compile", "field", "imports",
    "tango", "tango_wide", "guarantee", "memory", "loading", "epoch",
)  # fmt: skip
FIGURES = Path(__file__).parent / "figures.json"
README = Path(__file__).parents[1] / "README.md"
MARKS = "<!-- measured by `benchmarks/run.py --readme`; do not edit -->", "<!-- end of measured -->"


def write_readme(name: str, claims: list[Claim], rounds: int) -> None:
    """Keep the figures of a script, and put those of all scripts into the README, between its marks."""
    kept: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    machine = f"one thread of {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}"
    kept[name] = {"rounds": rounds, "machine": machine, "claims": [dataclasses.asdict(claim) for claim in claims]}
    FIGURES.write_text(json.dumps({name: kept[name] for name in NAMES if name in kept}, indent=1) + "\n")
    rows = ["| figure | claim | measured | | case |", "|---|---|---|---|---|"]
    for one in (Claim(**figures) for name in NAMES if name in kept for figures in kept[name]["claims"]):
        rows.append(f"| {one.text} | {one.bound} | {one.value} | {one.verdict} | {one.case} |")
    machines = " and ".join(sorted({script["machine"] for script in kept.values()}))
    fewest = min(script["rounds"] for script in kept.values())
    note = f"Medians of at least {fewest} interleaved rounds, of 7 for training steps of graph networks, on {machines}."
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
    parser.add_argument("--readme", action="store_true", help="write the figures into the README")
    rounds_argument(parser)
    arguments = parser.parse_args()
    found: list[tuple[str, Claim]] = []
    for name in arguments.only or NAMES:
        print(f"\n{'=' * 30} {name} {'=' * 30}\n", flush=True)
        script = importlib.import_module(name)
        claims = show(script.__doc__, script.measure, arguments.rounds)
        found += [(name, claim) for claim in claims]
        if arguments.readme:
            write_readme(name, claims, arguments.rounds)
    rows = [[claim.text, name, claim.bound, claim.value, claim.verdict, claim.case] for name, claim in found]
    print_table("Summary", ("figure", "script", "claim", "measured", "", "case"), rows)
    claims = [claim for _, claim in found if claim.is_bounded]
    missed = sum(not claim.reached for claim in claims)
    print(f"\n{len(claims) - missed} of {len(claims)} claims reached" + (f", {missed} NOT REACHED" if missed else ""))


if __name__ == "__main__":
    main()
