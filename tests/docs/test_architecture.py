"""The pictures of the architecture show what the code does."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lyapflow_graph.training import Config, DataConfig, ModelConfig, TrainingConfig, train
from tests.lyapflow_graph.training.cases import graphs_with_values

ROOT = Path(__file__).parents[2]
PACKAGES = ("solvers", "lyapflow", "lyapflow_graph", "examples", "experiments", "benchmarks")
FILE = ROOT / "docs" / "images" / "architecture.py"


def drawn() -> Any:
    spec = importlib.util.spec_from_file_location("architecture", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def unit(module: str) -> str:
    """The box of a module: its package, or in the two large ones what is directly inside."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in ("lyapflow", "lyapflow_graph") else parts[0]


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """What is imported, also inside functions; not what only a type checker sees."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    unseen = {id(part) for node in for_types for line in node.body for part in ast.walk(line)}
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{one.name}" if f"{base}.{one.name}" in known else base for one in node.names)


def test_imports_point_down() -> None:
    known, level = modules(), {}
    for row, (package, names) in enumerate(reversed(drawn().ROWS)):
        for name in names:
            level[name if package in ("scripts", "solvers") else f"{package}.{name}"] = row
    # The packages themselves pass names on; `__main__` is the command line.
    units = {unit(module) for module in known} - {"lyapflow", "lyapflow_graph", "lyapflow.__main__"}
    assert units == set(level), "docs/images/architecture.py has to show every module, and no other"
    wrong = [
        f"{module} imports {target}"
        for module, path in known.items()
        if unit(module) in level
        for target in imports(module, path, known)
        if unit(target) in level and unit(target) != unit(module) and level[unit(target)] >= level[unit(module)]
    ]
    assert not wrong


def test_a_training_step_goes_the_way_that_is_drawn(tmp_path: Path) -> None:
    steps = [(module, name) for module, name, _ in drawn().STEPS]
    seen: list[tuple[str, str]] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        called = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if event == "call" and called in steps and called not in seen:
            seen.append(called)

    # Not Euler's method, whose steps may all be taken in one kernel.
    config = Config(
        DataConfig("x"),
        ModelConfig("tango", 4, {"num_steps": 2, "method": "heun"}),
        TrainingConfig(epochs=1, certify=0),
    )
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        train(config, tmp_path, dataset=graphs_with_values(), figures=False, progress=False)
    finally:
        sys.setprofile(before)
    assert seen == steps


def test_the_pictures_are_those_that_the_script_draws() -> None:
    for name, text in drawn().pictures().items():
        assert (FILE.parent / name).read_text(encoding="utf-8") == text, "run python docs/images/architecture.py"
