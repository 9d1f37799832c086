"""Every public name has its place in the reference: a name that is added without one is found here."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("solvers", "lyapflow", "lyapflow_graph")
DIRECTIVE = re.compile(r"^\.\. (currentmodule|auto\w+|py:data):: ([\w.]+)$")


def public_modules() -> Iterator[str]:
    """The modules that say what is public, by `__all__`; those with a leading underscore are private."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if not any(part.startswith("_") for part in parts) and _says_all(path):
                yield ".".join(parts)


def _says_all(path: Path) -> bool:
    assigned = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign))
    return any(isinstance(name, ast.Name) and name.id == "__all__" for node in assigned for name in node.targets)


def documented(text: str) -> list[str]:
    """The full names that a page documents."""
    module, names = "", []
    for line in text.splitlines():
        found = DIRECTIVE.match(line)
        if found is None:
            continue
        kind, name = found.groups()
        if kind == "currentmodule":
            module = name
        elif kind not in ("autosummary", "automodule"):
            names.append(name if name.split(".")[0] in PACKAGES else f"{module}.{name}")
    return names


def look_up(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


DOCUMENTED = [name for package in PACKAGES for name in documented((ROOT / "docs" / f"{package}.md").read_text())]


@pytest.mark.parametrize("module", list(public_modules()))
def test_every_public_name_is_in_the_reference(module: str) -> None:
    # A name that is passed on from another module, as lyapflow.Rows from solvers, is documented there.
    known = [look_up(name) for name in DOCUMENTED]
    public = importlib.import_module(module)
    missing = [
        name
        for name in public.__all__
        if f"{module}.{name}" not in DOCUMENTED and not any(getattr(public, name) is one for one in known)
    ]
    assert not missing, f"of {module}, the reference in docs/ lacks {', '.join(missing)}"


def test_nothing_is_documented_twice() -> None:
    assert len(set(DOCUMENTED)) == len(DOCUMENTED)
    assert len(DOCUMENTED) > 150  # the pages were read


def test_summaries_list_what_is_documented() -> None:
    """The tables of links at the head of a group have the names that follow them."""
    for package in PACKAGES:
        for block in (ROOT / "docs" / f"{package}.md").read_text().split("```{eval-rst}")[1:]:
            lines = block.split("```")[0].splitlines()
            # A name of a module below is listed with that module, which `autosummary` needs to find it.
            listed = {line.strip().rpartition(".")[2] for line in lines if re.fullmatch(r" {3}\w+(\.\w+)?", line)}
            following = {name.rpartition(".")[2] for name in documented("\n".join(lines)) if listed}
            constants = {line.rpartition(".")[2] for line in lines if line.startswith(".. py:data::")}
            outside = {"release"}  # of a module below, named in full
            assert listed == following - constants - outside
