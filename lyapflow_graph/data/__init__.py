"""Data sets by name, each with its protocol, and mini-batches of graphs."""

from .dataset import GraphDataset
from .entries import Entry, Request
from .errors import DamagedDataError, MissingDataError
from .graphs import GraphSet
from .importing import import_files
from .loader import BatchLoader
from .registry import load, names, register_dataset
from .sources import default_root

__all__ = [
    "BatchLoader",
    "DamagedDataError",
    "Entry",
    "GraphDataset",
    "GraphSet",
    "MissingDataError",
    "Request",
    "default_root",
    "import_files",
    "load",
    "names",
    "register_dataset",
]
