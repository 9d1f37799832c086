"""What this installation has, and what it lacks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re

import torch

from . import __version__


def diagnosis() -> dict[str, str]:
    """Versions, kernels, threads, devices and missing extras, each in a line.

    >>> from lyapflow.doctor import diagnosis
    >>> list(diagnosis())
    ['lyapflow', 'python', 'torch', 'threads', 'devices', 'kernels', 'missing']
    """
    return {
        "lyapflow": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        "devices": ", ".join(_devices()),
        "kernels": "; ".join(_kernels()),
        "missing": "; ".join(_missing()) or "nothing",
    }


def _devices() -> list[str]:
    cuda = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def _kernels() -> list[str]:
    if importlib.util.find_spec("torch_geometric") is None:
        return ['none: graphs need pip install "lyapflow[graph]"']
    from lyapflow_graph.kernels import cpu, cuda

    compiled = "pip install --force-reinstall --no-deps --no-binary lyapflow lyapflow"
    found = ["CPU: C" if cpu.available else f"CPU: plain torch, slower; with a C compiler: {compiled}"]
    if torch.cuda.is_available():
        found.append("CUDA: Triton" if cuda.available else 'CUDA: plain torch; pip install "lyapflow[cuda]"')
    return found


def _missing() -> list[str]:
    """The extras of which a package is not installed, with the command that gets it."""
    absent: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("lyapflow") or []:
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if name is None or extra is None or name.group() == "lyapflow" or extra.group(1) in ("dev", "test", "docs"):
            continue
        try:
            importlib.metadata.version(name.group())
        except importlib.metadata.PackageNotFoundError:
            absent.setdefault(extra.group(1), []).append(name.group())
    return [f'{", ".join(names)}: pip install "lyapflow[{extra}]"' for extra, names in absent.items()]
