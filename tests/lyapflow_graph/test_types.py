"""Annotations are true: shapes and types are checked at run time by jaxtyping and beartype, over the public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import warnings

warnings.simplefilter("ignore")
import jaxtyping

import tests.solvers.typechecker

with jaxtyping.install_import_hook(["solvers", "lyapflow", "lyapflow_graph"], "tests.solvers.typechecker.check"):
    import lyapflow_graph

import torch
torch.set_num_threads(1)
from torch_geometric.data import Batch, Data
from lyapflow_graph import *

edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
path = Data(x=torch.randn(3, 5), edge_index=edge_index, edge_attr=torch.randn(4, 2), random_walk_pe=torch.rand(3, 4))
batch = Batch.from_data_list([path, path])
for name in BACKBONES:
    edge_dim = 2 if name in ("gatedgcn", "gps", "gat", "gatv2", "gine", "pna") else None
    data = batch.clone()
    if edge_dim is None:
        del data.edge_attr
    for task in ("node", "graph"):
        model = Tango(5, 8, 2, name, task, num_steps=2, edge_dim=edge_dim, pe={"random_walk_pe": 4})
        model(data).sum().backward()
    model.field(data).parts(0.0, torch.randn(6, 8))
    model.solve(data, saveat="steps")
    net = GraphNet(5, 8, 2, make_backbone(name, 8, 2, edge_dim), edge_dim=edge_dim)
    net(data.x, data.edge_index, data.edge_attr if edge_dim else None, data.batch).sum().backward()
for ablation in ("non-energy", "non-tangent", "gradient-flow"):
    conv = TangoConv(5, ablation=ablation, granularity="node", checkpoint=True, method="armijo_euler", num_steps=1)
    conv(path.x, edge_index).sum().backward()
Tango(5, 8, 2, share_weights=False, num_steps=2)(path.x, edge_index)
CategoricalEncoder(ATOM_FEATURES, 4)(torch.zeros(2, 9, dtype=torch.long))
DirichletEnergy(systems=GraphBatch.of(batch))(batch.x)
for dynamics in (ADGN(5), DGC(5), GRAFF(5), GRAND(5), PHDGN(5), SWAN(5), GraphCON(5)):
    dynamics(batch.x, batch.edge_index, batch=batch.batch)
    influence_over_distance(lambda x: dynamics(x, edge_index), path.x, edge_index)
dirichlet_energy(path.x, edge_index), mean_average_distance(path.x, edge_index), spectral_gap(edge_index)
effective_resistance(edge_index), energy_per_step(GRAFF(5), path.x, edge_index)

try:
    TangoConv("many")
except Exception as error:
    print(type(error).__module__.split(".")[0])
print("checked")
"""


def test_annotations_hold_at_run_time() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["jaxtyping", "checked"]  # the hook was really at work
