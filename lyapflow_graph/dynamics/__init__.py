"""Dynamics on graphs from the literature, each with what its authors prove of it.

All of them are layers like any :class:`lyapflow_graph.DynamicsConv`, and give their field for `odeint`, `solve` and
`certify`. Where an energy never grows along the field, the field has it. Messages run along the edges as they are
stored, from `edge_index[0]` to `edge_index[1]`; features of edges are refused, except by those that were given a
network, which may read them.
"""

from .adgn import ADGN
from .dgc import DGC
from .field import GraphDynamics, GraphField
from .graff import GRAFF
from .grand import GRAND
from .graphcon import GraphCON
from .phdgn import PHDGN
from .registry import DYNAMICS, register_dynamics
from .swan import SWAN

__all__ = [
    "ADGN",
    "DGC",
    "DYNAMICS",
    "GRAFF",
    "GRAND",
    "PHDGN",
    "SWAN",
    "GraphCON",
    "GraphDynamics",
    "GraphField",
    "register_dynamics",
]
