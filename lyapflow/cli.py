"""The entry of the command `lyapflow`.

Exit codes: 0 all well, 1 a certificate that does not hold, 2 wrong input, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; errors are told in a line, not in a traceback."""
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        print('error: the command lyapflow needs Typer and Rich: pip install "lyapflow[cli]"', file=sys.stderr)
        sys.exit(2)
    from .commands import app

    try:
        app(arguments)
    except (ValueError, TypeError, ImportError, AttributeError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
