"""A plugin of pytest, for `.ci/sanitize`: the C module of `LYAPFLOW_CPU_MODULE` in place of the installed one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

NAME = "lyapflow_graph.kernels._cpu"

if "LYAPFLOW_CPU_MODULE" in os.environ:  # not where doctests are collected
    loader = importlib.machinery.ExtensionFileLoader(NAME, os.environ["LYAPFLOW_CPU_MODULE"])
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    loader.exec_module(sys.modules[NAME])
