"""A training step of TANGO against its backbone at the size of Questions and width 256, which takes minutes and 20 GB.

Claim: TANGO with GatedGCN takes at most 1.42 times as long as 8 layers of GatedGCN written with PyTorch Geometric's
MessagePassing. The paper measured 1.42 there, on a GPU.
"""

from __future__ import annotations

from report import Claim, main
from tango import ROUNDS, TANGO, THEIRS, compare

CASE = "Questions, 256"


def measure(rounds: int) -> list[Claim]:
    timings = compare("gatedgcn", (48_921, 307_080, 256, 1), CASE, ROUNDS, with_plain=False)
    ratio = timings.ratio(TANGO, THEIRS)
    return [Claim("TANGO with GatedGCN in units of PyG's 8 layers", ratio, at_most=1.42, case=CASE)]


if __name__ == "__main__":
    main(__doc__, measure)
