"""What the README shows works as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_blocks_run(code: str) -> None:
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    if "Net" in names:
        edges = torch.tensor([[0, 1], [1, 0]])
        assert names["Net"](3, 8, 2)(torch.randn(2, 3), edges, torch.zeros(2, dtype=torch.long)).shape == (2, 2)  # type: ignore[operator]
    else:
        assert names["solution"].success  # type: ignore[attr-defined]


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


def test_the_number_of_methods_is_right() -> None:
    from solvers import methods

    ours = {method.name for name, method in methods().items() if type(method).__module__.startswith("solvers")}
    registered_by_doctests = {"ralston", "kutta3"}
    aliases = {"heun2"}
    (number,) = re.findall(r"\| (\d+) methods", README)
    assert int(number) == len(ours - registered_by_doctests - aliases)
