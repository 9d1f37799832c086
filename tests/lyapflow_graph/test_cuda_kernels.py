"""Kernels in Triton: right under its interpreter, and compiled for three generations of devices; tests on a device."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lyapflow_graph import GraphBatch
from lyapflow_graph.kernels import cuda, gated, gated_sums, gated_update, kernel_backend, layer, silu, velocity
from solvers import Single
from tests.lyapflow_graph.test_kernels import OPERATORS, arguments, check_agreement, derivatives, hub, losses

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
ROOT = Path(__file__).parents[2]


@needs_triton
def test_kernels_are_right_under_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    path = Path(__file__).with_name("interpreted_kernels.py")
    run = subprocess.run(
        [*command, str(path)], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"\d+ passed", run.stdout)
    assert "skipped" not in run.stdout


# -- compiled ---------------------------------------------------------------------------------------------------------


class Absent:
    """A device that is not there, as far as Triton asks for it before it launches a kernel."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # what is compiled for one device is not taken for another

    def get_current_stream(self, device: int) -> int:
        return 0


def launch_all(width: int, dtype: torch.dtype, edges: bool) -> None:
    x, w, c = (torch.zeros(*shape, width, dtype=dtype) for shape in ((5,), (), (15,)))
    e, packed = c if edges else None, hub(5).packed_edges
    cuda.GATED.value(x, x, x, e, packed)
    cuda.GATED.backward(x, x, x, e, packed, x, x)
    cuda.GATED.double_backward(x, x, x, e, packed, x, x, x, x, x, e)
    cuda.UPDATE.value(x, x, x, w, w)
    cuda.UPDATE.backward(x, x, x, w, w, x)
    cuda.UPDATE.double_backward(x, x, x, w, w, x, x, x, x, w, w)
    cuda.SILU.value(x)
    cuda.SILU.backward(x, x)
    cuda.SILU.double_backward(x, x, x)


@needs_triton
@pytest.mark.parametrize(
    ("capability", "width", "dtype", "edges"),
    [
        (80, 64, torch.float32, True),
        (90, 64, torch.float32, True),
        (90, 130, torch.float64, False),
        (100, 1, torch.float32, True),
    ],
)
def test_kernels_are_compiled_without_atomic_operations(
    capability: int, width: int, dtype: torch.dtype, edges: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from triton.runtime import JITFunction, driver

    found = []

    def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *x, **y: found.append(kernel.warmup(*x, grid=grid, **y))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", Absent(capability))
    monkeypatch.setattr(JITFunction, "__getitem__", launch)
    launch_all(width, dtype, edges)
    assert len(found) == 11
    for kernel in found:
        code = kernel.asm["ptx"]
        assert re.search(rf"^\.target sm_{capability}a?$", code, re.M)
        assert f".entry {kernel.name}(" in code
        assert not re.search(r"\b(atom|red)\.", code)
        assert kernel.asm["cubin"][:4] == b"\x7fELF"


# -- who computes -----------------------------------------------------------------------------------------------------


def test_operators_take_tensors_on_a_device_where_there_is_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `torch.compile` does it: with tensors that have a device and a shape, but no data."""
    size = len(hub(4).packed_edges)
    with FakeTensorMode():
        x, w = torch.empty(4, 3, device="cuda"), torch.empty(3, device="cuda")
        packed = torch.empty(size, dtype=torch.int32, device="cuda")
        for triton in (False, True):
            monkeypatch.setattr(cuda, "available", triton)
            assert gated.has_kernel(x) == triton
            assert not gated.has_kernel(x.half())
            assert not gated.has_kernel(x, x.double())
            with kernel_backend("reference"):
                assert not gated.has_kernel(x)
        num, den = gated_sums(x, x, x, None, packed)
        y = gated_update(x, num, den, w, w)
        assert [(z.shape, z.device.type) for z in (num, den, y, silu(y))] == [((4, 3), "cuda")] * 4
    assert not gated.has_kernel(torch.empty(4, 3, device="meta"))


def test_layers_as_a_whole_are_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "available", True)
    with FakeTensorMode():
        x, one = torch.empty(4, 3, device="cuda"), torch.empty(1, device="cuda")
        assert not layer.fits(x)
        assert velocity.velocity(x, x, one, one, Single(), None) is None


# -- on a device ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 30, 64, 130])
@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_agree_with_plain_torch(device: torch.device, name: str, width: int, dtype: torch.dtype) -> None:
    random = torch.randint(0, 200, (2, 1000)).to(device)
    for graphs in (hub(300, device), GraphBatch(random, 220), GraphBatch(random[:, :0], 3)):
        check_agreement(name, graphs, width, 0, dtype, edges=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_the_same_bit_by_bit(device: torch.device, name: str) -> None:
    function, inputs = arguments(name, hub(500, device), 64, 0, torch.float32)
    assert all(map(torch.equal, derivatives(function, inputs), derivatives(function, inputs)))


def test_a_model_trains_alike_on_every_device(device: torch.device) -> None:
    found, wanted = losses("auto", 5, device), losses("reference", 5)
    assert max(abs(a - b) / b for a, b in zip(found, wanted, strict=True)) < 1e-6
