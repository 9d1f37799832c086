"""What the README says of itself is so; tests/docs/test_code_blocks.py runs its code and follows its links."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_number_of_methods_is_right() -> None:
    from solvers import methods

    ours = {method.name for name, method in methods().items() if type(method).__module__.startswith("solvers")}
    registered_by_doctests = {"ralston", "kutta3"}
    aliases = {"heun2"}
    (number,) = re.findall(r"\| (\d+) methods", README)
    assert int(number) == len(ours - registered_by_doctests - aliases)
