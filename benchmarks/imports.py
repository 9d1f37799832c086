"""How long `import lyapflow` takes.

Claim: at most 1.15 times as long as `import torch`, in new processes, interleaved.
"""

from __future__ import annotations

import subprocess
import sys

from report import Claim, main, print_table
from timing import interleave

STATEMENTS = {"import torch": "import torch", "import lyapflow": "import lyapflow"}


def measure(rounds: int) -> list[Claim]:
    def starter(statement: str) -> object:
        return lambda: subprocess.run([sys.executable, "-c", statement], check=True)

    timings = interleave({name: starter(statement) for name, statement in STATEMENTS.items()}, rounds)  # type: ignore[misc]
    rows = [timings.row(name, "import torch") for name in STATEMENTS]
    print_table("New processes, milliseconds", ("statement", "ms", "spread", "of torch's"), rows)
    ratio = timings.ratio("import lyapflow", "import torch")
    return [Claim("import lyapflow in units of import torch", ratio, at_most=1.15)]


if __name__ == "__main__":
    main(__doc__, measure)
