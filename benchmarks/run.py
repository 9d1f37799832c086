"""Run every benchmark and say which claims the figures measured now reach.

A benchmark reports; it is not a test. The exit code is 0 also where a claim is not reached.
"""

from __future__ import annotations

import argparse
import importlib

from report import Claim, print_table, rounds_argument, show

NAMES = ("fixed_step", "adaptive", "per_system", "compile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append", help="run this one; may be repeated")
    rounds_argument(parser)
    arguments = parser.parse_args()
    found: list[tuple[str, Claim]] = []
    for name in arguments.only or NAMES:
        print(f"\n{'=' * 30} {name} {'=' * 30}\n")
        script = importlib.import_module(name)
        found += [(name, claim) for claim in show(script.__doc__, script.measure, arguments.rounds)]
    rows = [[claim.text, name, claim.bound, claim.value, claim.verdict, claim.case] for name, claim in found]
    print_table("Summary", ("figure", "script", "claim", "measured", "", "case"), rows)
    claims = [claim for _, claim in found if claim.is_bounded]
    missed = sum(not claim.reached for claim in claims)
    print(f"\n{len(claims) - missed} of {len(claims)} claims reached" + (f", {missed} NOT REACHED" if missed else ""))


if __name__ == "__main__":
    main()
