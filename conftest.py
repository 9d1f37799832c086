"""Settings shared by all tests and doctests."""

from __future__ import annotations

import importlib.util
import os

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("thorough", max_examples=500, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Modules of kernels in Triton can only be imported where it is installed.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["lyapflow_graph/kernels/triton_*.py"]

# The tests run on several processes; more threads in each would only make them wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _root(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["LYAPFLOW_ROOT"] = str(tmp_path_factory.mktemp("root"))  # where data sets keep what they generate


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _devices() -> list[object]:
    cuda = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))
    return ["cpu", cuda]


@pytest.fixture(params=_devices())
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
