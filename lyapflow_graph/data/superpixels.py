"""MNIST as graphs of superpixels, made here from the images.

Needs scikit-image: `pip install "lyapflow[superpixels]"`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from .dataset import GraphDataset
from .entries import Entry, Request
from .errors import DamagedDataError
from .generated import PARTS, Parts, kept
from .graphs import GraphSet
from .options import check_number
from .progress import track
from .reading import unpack
from .sources import Source, SourceFile, find_source

_OFFICIAL = (55000, 5000, 10000)
_MOST, _FIRST_QUERY, _COMPACTNESS = 75, 95, 0.25
_NEIGHBOURS = 8

# md5 of the unpacked files.
_DIGESTS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_IMAGES = Source(
    "the four files of images and labels",
    tuple(
        SourceFile(f"mnist/raw/{name}.gz", (f"{name}.gz",), digest, "md5", unpacked=True)
        for name, digest in _DIGESTS.items()
    ),
    "the MNIST database of handwritten digits (LeCun, Cortes, Burges)",
)


def _superpixels(request: Request, *, graphs: int = sum(_OFFICIAL)) -> GraphDataset:
    check_number("graphs", graphs, least=14, most=sum(_OFFICIAL))
    if importlib.util.find_spec("skimage") is None:
        raise ImportError('mnist-superpixels needs scikit-image: pip install "lyapflow[superpixels]"')
    source = find_source("mnist-superpixels", (_IMAGES,), request.root)
    for file in source.files:
        file.check(request.root)
    test, val = round(graphs / 7), round(graphs / 14)
    counts = {"train": graphs - test - val, "val": val, "test": test}

    def make() -> Parts:
        files = [request.root / file.path for file in source.files]
        images, labels = (np.concatenate([read_idx(files[i]), read_idx(files[i + 2])]) for i in (0, 1))
        # The first 5,000 images for training are for validation.
        starts = {"train": _OFFICIAL[1], "val": 0, "test": sum(_OFFICIAL[:2])}
        parts = {}
        for part in PARTS:
            numbers = range(starts[part], starts[part] + counts[part])
            bar = track(numbers, len(numbers), f"superpixels, {part}", request.progress)
            parts[part] = GraphSet.of(superpixel_graph(images[i], int(labels[i]), seed=i) for i in bar)
        return parts

    version = importlib.metadata.version("scikit-image")
    parts = kept(request, "mnist-superpixels", {"graphs": graphs, "skimage": version, "version": 1}, make)
    return GraphDataset(
        name="mnist-superpixels",
        task="graph",
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
        in_channels=3,
        out_channels=10,
        edge_dim=1,
        loss="cross_entropy",
        metric="accuracy",
        provenance={
            "source": f"{source.published}; superpixels by SLIC of scikit-image {version}",
            "split": "/".join(str(count) for count in counts.values()),
            "official": False,
            "differs": "present SLIC finds fewer superpixels than that of the published graphs (70.6 on average)",
        },
    )


def read_idx(path: Path) -> np.ndarray:
    """The array of bytes in a compressed IDX file."""
    content = unpack(path, path.read_bytes())
    dimensions = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    header = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:header], dtype=">u4")
    if dimensions == 0 or len(shape) != dimensions or len(content) - header != int(shape.astype(np.int64).prod()):
        raise DamagedDataError(f"{path} cannot be read: it is no IDX file of bytes, or not a whole one")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape.tolist())


def superpixel_graph(image: np.ndarray, label: int, seed: int) -> Data:
    """A grey image as a graph: nodes are superpixels with their mean intensity and place, each linked to eight others.

    Args:
        image: `[height, width]` of bytes.
        label: Its class.
        seed: Of the order of the nodes.
    """
    from skimage.segmentation import slic

    grey = image.astype(np.float64) / 255
    for query in range(_FIRST_QUERY, 0, -1):
        segments = slic(grey, n_segments=query, compactness=_COMPACTNESS, channel_axis=None, start_label=0)
        _, segments = np.unique(segments, return_inverse=True)
        segments = segments.reshape(image.shape)
        count = int(segments.max()) + 1
        if count <= _MOST:
            break
    pixels = np.bincount(segments.ravel())
    rows, columns = np.indices(image.shape)
    means = [np.bincount(segments.ravel(), values.ravel()) / pixels for values in (grey, rows, columns)]
    x = np.stack(means, axis=1) / [1.0, image.shape[0], image.shape[1]]
    x = x[np.random.default_rng(seed).permutation(count)]
    edge_index, weight = _nearest(x[:, 1:])
    return Data(
        x=torch.from_numpy(x.astype(np.float32)),
        edge_index=torch.from_numpy(edge_index),
        edge_attr=torch.from_numpy(weight.astype(np.float32))[:, None],
        y=torch.tensor([label]),
    )


def _nearest(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges to the most similar others, and how similar: a Gaussian of the distance, as wide as a neighbourhood."""
    n = len(places)
    degree = min(_NEIGHBOURS, n - 1)
    distance = np.linalg.norm(places[:, None] - places, axis=2)
    width = np.sort(distance, axis=1)[:, :_NEIGHBOURS].sum(1) / _NEIGHBOURS  # a node is its own nearest
    similar = np.exp(-((distance / np.maximum(width, 1e-12)[:, None]) ** 2))
    similar = (similar + similar.T) / 2
    np.fill_diagonal(similar, -1.0)
    chosen = np.argsort(-similar, axis=1, kind="stable")[:, :degree]
    sources = np.repeat(np.arange(n), degree)
    return np.stack([sources, chosen.ravel()]), similar[sources, chosen.ravel()]


ENTRIES = (Entry("mnist-superpixels", "70,000 superpixel graphs made from the images", _superpixels, (_IMAGES,)),)
