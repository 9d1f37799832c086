"""Data sets by name, each with its protocol, and mini-batches of graphs."""

from .dataset import GraphDataset, Loss, Metric, maximise
from .errors import DamagedDataError, MissingDataError
from .graphs import GraphSet
from .importing import import_files
from .loader import BatchLoader
from .registry import load, names
from .sources import default_root

__all__ = [
    "BatchLoader",
    "DamagedDataError",
    "GraphDataset",
    "GraphSet",
    "Loss",
    "Metric",
    "MissingDataError",
    "default_root",
    "import_files",
    "load",
    "maximise",
    "names",
]
