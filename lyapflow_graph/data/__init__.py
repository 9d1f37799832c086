"""Data sets by name, each with its protocol, and mini-batches of graphs."""

from .benchmark import Benchmark, Loss, Metric, maximise
from .graphs import GraphSet
from .loader import BatchLoader

__all__ = ["BatchLoader", "Benchmark", "GraphSet", "Loss", "Metric", "maximise"]
