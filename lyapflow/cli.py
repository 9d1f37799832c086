"""The entry of the command `lyapflow`.

Exit codes: 0 all well, 1 a certificate that does not hold, 2 wrong input, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

# Commands that live in packages which need more than torch; they are imported when one of them is asked for.
ELSEWHERE = {
    "train": "lyapflow_graph.training.commands",
    "report": "lyapflow_graph.training.commands",
    "predict": "lyapflow_graph.training.commands",
    "export": "lyapflow_graph.training.commands",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; errors are told in a line, not in a traceback."""
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        print('error: the command lyapflow needs Typer and Rich: pip install "lyapflow[cli]"', file=sys.stderr)
        sys.exit(2)
    from .commands import app

    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _attach(app, given)
        app(given)
    except (ValueError, TypeError, ImportError, AttributeError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _attach(app: Any, arguments: Sequence[str]) -> None:
    """Add the commands from elsewhere that are asked for; all that can be imported, where help is."""
    words = [word for word in arguments if not word.startswith("-")]
    if words:
        wanted = {ELSEWHERE[words[0]]} if words[0] in ELSEWHERE else set()
    else:
        wanted = {module for module in ELSEWHERE.values() if "--version" not in arguments and _is_there(module)}
    for module in sorted(wanted):
        added = importlib.import_module(module).app
        known = {id(command.callback) for command in app.registered_commands}
        app.registered_commands += [one for one in added.registered_commands if id(one.callback) not in known]


def _is_there(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True
