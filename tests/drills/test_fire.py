"""Fire drills: full disks, forks, threads, and sizes that nobody tries on a small example."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from lyapflow_graph import Tango
from lyapflow_graph.training import Record
from solvers import Rows, solve
from solvers.status import Status

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

TRAIN = """
import resource, sys
from tests.lyapflow_graph.training.cases import graphs_with_values, small
from lyapflow_graph.training import train
limit, folder = int(sys.argv[1]), sys.argv[2]
if limit:
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
data = graphs_with_values()
train(small(data, epochs=3), folder, dataset=data, resume=True, figures=False, progress=False)
"""

FORK = """
import multiprocessing, torch
from tests.drills.test_fire import ring, tango
model, graph = tango(), ring(400)
wanted = model(graph).detach()  # the kernels have run, with all their threads

class Outputs(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return model(graph).detach()

loader = torch.utils.data.DataLoader(Outputs(), num_workers=2, batch_size=None, multiprocessing_context="fork")
for found in loader:
    torch.testing.assert_close(found, wanted)
"""


def ring(nodes: int, channels: int = 3) -> Data:
    there = torch.arange(nodes)
    edges = torch.stack([torch.cat([there, (there + 1) % nodes]), torch.cat([(there + 1) % nodes, there])])
    generator = torch.Generator().manual_seed(nodes)
    return Data(x=torch.randn(nodes, channels, generator=generator), edge_index=edges)


def tango(**more: object) -> Tango:
    torch.manual_seed(0)
    return Tango(3, 16, 2, num_steps=2, **more).eval()  # type: ignore[arg-type]


def python(*command: str, before: tuple[str, ...] = (), seconds: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole = [*before, sys.executable, "-W", "ignore", "-c", *command]
    return subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)


def test_a_full_disk(tmp_path: Path) -> None:
    """The run stops with words and goes on when there is space again."""
    ended = python(TRAIN, "3000", str(tmp_path / "run"))
    assert ended.returncode != 0
    assert "OSError" in ended.stderr
    assert "cannot write" in ended.stderr
    assert not list((tmp_path / "run").glob(".*.tmp"))
    ended = python(TRAIN, "0", str(tmp_path / "run"))
    assert ended.returncode == 0, ended.stderr
    assert Record.load(tmp_path / "run").epochs == 3


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    before: tuple[str, ...] = ()
    if os.getuid() == 0:  # for whom permissions count only without this capability
        if shutil.which("setpriv") is None:
            pytest.skip("root writes everywhere, and there is no setpriv to give that up")
        before = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")
    tmp_path.chmod(0o500)
    try:
        ended = python(TRAIN, "0", str(tmp_path / "run"), before=before)
    finally:
        tmp_path.chmod(0o700)
    assert ended.returncode != 0
    assert "PermissionError" in ended.stderr
    assert str(tmp_path / "run") in ended.stderr


def test_a_fork_after_the_kernels_have_run() -> None:
    ended = python(FORK, seconds=120)
    assert ended.returncode == 0, ended.stderr


def test_three_threads_at_once() -> None:
    model, graphs = tango(), [ring(nodes) for nodes in (50, 400, 3000)]
    wanted = [model(graph).detach() for graph in graphs]
    wrong: list[str] = []

    def work(k: int) -> None:
        for _ in range(10):
            found = model(graphs[k]).detach()
            if not torch.allclose(found, wanted[k], rtol=1e-5, atol=1e-6):
                wrong.append(f"thread {k}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_two_thousand_steps_of_training_take_no_more_memory() -> None:
    model, graph = tango().train(), ring(20)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memory = []
    for step in range(2000):
        optimizer.zero_grad()
        model(graph).square().mean().backward()
        optimizer.step()
        if step in (499, 1999):
            memory.append(resident())
    # A graph of autograd that stays alive takes some 50 kB a step, 75 MB in all.
    assert memory[1] - memory[0] < 8 * 2**20


def test_ten_thousand_tiny_graphs_in_one_batch() -> None:
    """With one-node graphs among them; each gets what it gets by itself."""
    model = tango(task="graph")
    graphs = [ring(1 + k % 3) for k in range(10_000)]
    for graph in graphs[::3]:
        graph.edge_index = graph.edge_index[:, :0]
    found = model(Batch.from_data_list(graphs))
    assert found.shape == (10_000, 2)
    for k in (0, 1, 2, 9_998, 9_999):
        torch.testing.assert_close(found[k : k + 1], model(Batch.from_data_list([graphs[k]])), rtol=1e-4, atol=1e-5)
    found.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)


def test_a_hundred_thousand_systems_of_spread_stiffness() -> None:
    """`y' = -k y` with k from 0.01 to 1000, each at its own pace, against the exponential."""
    rates = torch.logspace(-2, 3, 100_000, dtype=torch.float64)[:, None]

    def field(t: Tensor, y: Tensor) -> Tensor:
        return -rates * y

    y0 = torch.ones_like(rates)
    found = solve(field, y0, 0.0, 0.1, method="dopri5", systems=Rows())
    assert bool((torch.as_tensor(found.status) == int(Status.SUCCESS)).all())
    torch.testing.assert_close(found.y1, torch.exp(-0.1 * rates), rtol=1e-2, atol=1e-5)
    steps = found.stats["steps"]
    assert int(steps.max()) > 3 * int(steps.min())


def test_a_graph_of_a_million_nodes_for_one_step() -> None:
    torch.manual_seed(0)
    model = Tango(3, 4, 2, num_steps=1).eval()
    with torch.no_grad():
        found = model(ring(1_000_000))
    assert found.shape == (1_000_000, 2)
    assert bool(torch.isfinite(found).all())
