"""Files of data sets: found, checked, imported, and never run."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.datasets import HeterophilousGraphDataset

from lyapflow_graph.data import DamagedDataError, MissingDataError, import_files, load
from lyapflow_graph.data.reading import read_npz, read_pickle, read_torch
from lyapflow_graph.data.registry import ENTRIES
from lyapflow_graph.data.sources import SourceFile
from tests.lyapflow_graph.data.cases import trainable

FROM_FILES = [entry.name for entry in ENTRIES.values() if entry.sources]


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, crater: Path) -> None:
        self.crater = crater

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.crater),)


@pytest.fixture
def any_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are shaped like the real ones pass for them."""
    monkeypatch.setattr(SourceFile, "check_content", lambda *arguments: None)


# -- small files that are shaped like the real ones -------------------------------------------------------------------


def heterophilous_file(path: Path, n: int = 12) -> None:
    rng = np.random.default_rng(0)
    part = np.stack([rng.permutation(n) * 4 // n for _ in range(10)])
    np.savez(
        path,
        node_features=rng.random((n, 3), dtype=np.float32),
        node_labels=np.arange(n) % 2,
        edges=np.stack([np.arange(n - 1), np.arange(1, n)], axis=1),
        train_masks=part < 2,
        val_masks=part == 2,
        test_masks=part == 3,
    )


def zinc_npz(path: Path) -> None:
    arrays = {}
    for part, graphs in (("train", 4), ("val", 2), ("test", 2)):
        arrays |= {
            f"{part}_node_ptr": np.arange(graphs + 1, dtype=np.int32) * 3,
            f"{part}_x": np.arange(3 * graphs, dtype=np.uint8) % 28,
            f"{part}_edge_ptr": np.arange(graphs + 1, dtype=np.int32) * 2,
            f"{part}_edge_index": np.tile(np.array([[0, 1], [1, 0]], dtype=np.uint8), graphs),
            f"{part}_edge_attr": np.ones(2 * graphs, dtype=np.uint8),
            f"{part}_y": np.arange(graphs, dtype=np.float32),
        }
    np.savez(path, **arrays)  # type: ignore[arg-type]


def zinc_raw(folder: Path) -> None:
    folder.mkdir(parents=True)
    bonds = torch.tensor([[0, 2, 0], [2, 0, 1], [0, 1, 0]], dtype=torch.int8)
    molecule = {
        "num_atom": 3,
        "atom_type": torch.tensor([5, 0, 27], dtype=torch.int8),
        "bond_type": bonds,
        "logP_SA_cycle_normalized": torch.tensor([1.5]),
    }
    for part in ("train", "val", "test"):
        (folder / f"{part}.pickle").write_bytes(pickle.dumps([molecule] * 3))
        (folder / f"{part}.index").write_text("0,2\n")


def peptides_files(folder: Path) -> None:
    np.savez(
        folder / "peptides_graphs.npz",
        node_ptr=np.array([0, 2, 5, 6], dtype=np.int32),
        x=np.ones((6, 9), dtype=np.uint8),
        edge_ptr=np.array([0, 1, 3, 3], dtype=np.int32),
        edge_index_undirected=np.array([[0, 0, 1], [1, 1, 2]], dtype=np.uint16),
        edge_attr=np.array([[1, 0, 0], [2, 0, 0], [3, 0, 0]], dtype=np.uint8),
        y=np.eye(3, 10, dtype=np.uint8),
    )
    split = {"train": np.array([2, 1]), "val": np.array([0]), "test": np.array([1])}
    (folder / "splits_random_stratified_peptide.pickle").write_bytes(pickle.dumps(split, protocol=4))


def lrgb_raw(folder: Path, targets: int) -> None:
    folder.mkdir(parents=True)
    x, bonds = torch.ones(2, 9, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    graph = (x, bonds, torch.tensor([[0, 1], [1, 0]]), torch.ones(1, targets))
    for part in ("train", "val", "test"):
        torch.save([graph, graph], folder / f"{part}.pt")


def benchmark_raw(path: Path, image: bool) -> None:
    path.parent.mkdir(parents=True)
    graph = {"x": torch.rand(4, 1 if image else 3), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    graph |= {"y": torch.tensor([3])} if image else {"y": torch.tensor([0, 1, 0, 1])}
    if image:
        graph |= {"pos": torch.rand(4, 2), "edge_attr": torch.rand(2)}
    torch.save(([graph] * 3, [graph] * 2, [graph] * 2), path)


def mnist_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", 60000), ("t10k", 10000)):
        images = np.zeros((count, 28, 28), dtype=np.uint8)
        images[:20] = rng.integers(0, 256, (20, 28, 28))
        images[5000:5020] = rng.integers(0, 256, (20, 28, 28))
        header = b"\0\0\x08\x03" + struct.pack(">3I", count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes(), 1))
        labels = b"\0\0\x08\x01" + struct.pack(">I", count) + (np.arange(count) % 7).astype(np.uint8).tobytes()
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels, 1))


# -- missing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FROM_FILES)
def test_a_missing_file_is_named_with_its_place_and_origin(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        load(name, tmp_path)
    text = str(caught.value)
    assert name in text
    assert "lyapflow data import" in text
    for source in ENTRIES[name].sources:
        assert source.published in text
        for file in source.files:
            assert str(tmp_path / file.path) in text
            assert file.digest is None or file.digest in text
    assert not list(tmp_path.iterdir())  # nothing was made on the way
    assert not ENTRIES[name].available(tmp_path)


@pytest.mark.parametrize("name", ["questions", "zinc", "peptides-struct", "cifar10"])
def test_a_download_is_asked_for_and_its_failure_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def no_network(url: str, *arguments: object, **options: object) -> str:
        asked.append(url)
        raise OSError("no network here")

    for module in ("heterophilous_graph_dataset", "zinc", "lrgb", "gnn_benchmark_dataset"):
        monkeypatch.setattr(f"torch_geometric.datasets.{module}.download_url", no_network)
    with pytest.raises(MissingDataError):
        load(name, tmp_path)
    assert not asked
    with pytest.raises(MissingDataError, match=r"The download failed: OSError: no network here"):
        load(name, tmp_path, download=True)
    assert len(asked) == 1


# -- read -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_content")
@pytest.mark.parametrize("name", ["minesweeper", "roman-empire", "texas"])
def test_heterophilous(name: str, tmp_path: Path) -> None:
    file = name.replace("-", "_")
    heterophilous_file(tmp_path / f"{file}.npz")
    root = tmp_path / "root"
    (imported,) = import_files(tmp_path, root)
    assert imported.outcome == "imported"
    for split in (0, 9):
        dataset = load(name, root, split=split)
        trainable(dataset)
        train, val, test = (part[0] for part in (dataset.train, dataset.val, dataset.test))
        assert (train.mask.long() + val.mask + test.mask == 1).all()
        raw = np.load(tmp_path / f"{file}.npz")
        assert np.array_equal(train.mask.numpy(), raw["train_masks"][split])
        assert train.edge_index.shape[1] == 22  # both ways
    with pytest.raises(ValueError, match=f"split of {name} must be a whole number from 0 to 9, got 10"):
        load(name, root, split=10)
    if name != "texas":  # it is what PyTorch Geometric has
        theirs = HeterophilousGraphDataset(str(root / "heterophilous"), name)[0]
        ours = load(name, root).train[0]
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.edge_index, theirs.edge_index)
        assert torch.equal(ours.mask, theirs.train_mask[:, 0])
        assert torch.equal(ours.y.flatten().long(), theirs.y)


@pytest.mark.usefixtures("any_content")
def test_zinc_prefers_official_files(tmp_path: Path) -> None:
    zinc_npz(tmp_path / "zinc12k_official-valtest_resampled-train.npz")
    root = tmp_path / "root"
    import_files(tmp_path, root)
    resampled = load("zinc", root)
    assert resampled.provenance["official"] is False
    assert "resampled train" in str(resampled.provenance["differs"])
    assert [len(part) for part in (resampled.train, resampled.val, resampled.test)] == [4, 2, 2]
    assert resampled.train[3].x.flatten().tolist() == [9, 10, 11]
    trainable(resampled)
    zinc_raw(tmp_path / "molecules")
    import_files(tmp_path / "molecules", root)
    official = load("zinc", root)
    assert official.provenance["official"] is True
    assert len(official.train) == 2
    assert official.train[1].x.flatten().tolist() == [5, 0, 27]
    assert official.train[1].edge_attr.flatten().tolist() == [2, 2, 1, 1]
    assert official.train[1].y.tolist() == [[1.5]]
    trainable(official)


@pytest.mark.usefixtures("any_content")
def test_peptides(tmp_path: Path) -> None:
    peptides_files(tmp_path)
    root = tmp_path / "root"
    import_files(tmp_path, root)
    dataset = load("peptides-func", root)
    assert dataset.train[0].num_nodes == 1  # the split is the official one
    both = dataset.train[1]
    assert {tuple(edge) for edge in both.edge_index.T.tolist()} == {(0, 1), (1, 0), (1, 2), (2, 1)}
    bonds = {
        tuple(edge): int(kind) for edge, kind in zip(both.edge_index.T.tolist(), both.edge_attr[:, 0], strict=True)
    }
    assert bonds == {(0, 1): 2, (1, 0): 2, (1, 2): 3, (2, 1): 3}
    assert both.y.tolist() == [[0, 1] + 8 * [0]]
    trainable(dataset)
    for name, targets in (("peptides-func", 10), ("peptides-struct", 11)):
        lrgb_raw(tmp_path / name.replace("-", ""), targets)
        import_files(tmp_path / name.replace("-", ""), root)
        official = load(name, root)
        assert len(official.train) == 2
        trainable(official)


@pytest.mark.usefixtures("any_content")
@pytest.mark.parametrize("name", ["mnist", "cifar10", "pattern", "cluster"])
def test_gnn_benchmark_from_its_archive(name: str, tmp_path: Path) -> None:
    raw = tmp_path / "made" / f"{name.upper()}_v2.pt"
    benchmark_raw(raw, image=name in ("mnist", "cifar10"))
    with zipfile.ZipFile(tmp_path / f"{name.upper()}_v2.zip", "w") as archive:
        archive.write(raw, raw.name)
    raw.unlink()
    root = tmp_path / "root"
    (imported,) = import_files(tmp_path, root)
    assert imported.found.parent.name == f"{name.upper()}_v2.zip"
    dataset = load(name, root)
    assert [len(part) for part in (dataset.train, dataset.val, dataset.test)] == [3, 2, 2]
    assert dataset.in_channels == 3  # positions are among them
    trainable(dataset)
    raw_there = next(root.rglob("*_v2.pt"))
    raw_there.write_bytes(b"")
    assert load(name, root).in_channels == 3  # from the processed files


@pytest.mark.usefixtures("any_content")
def test_superpixels(tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    mnist_files(tmp_path / "mnist" / "raw")
    dataset = load("mnist-superpixels", tmp_path, graphs=14)
    assert [len(part) for part in (dataset.train, dataset.val, dataset.test)] == [11, 1, 2]
    assert [graph.y.tolist() for graph in dataset.train[:2]] == [[5000 % 7], [5001 % 7]]
    assert dataset.val[0].y.tolist() == [0]  # the first images are for validation
    for graph in dataset.train:
        assert 9 < graph.num_nodes <= 75
        assert (torch.bincount(graph.edge_index[0]) == 8).all()
        assert (graph.edge_index[0] != graph.edge_index[1]).all()
        assert ((graph.x >= 0) & (graph.x <= 1)).all()
        assert ((graph.edge_attr > 0) & (graph.edge_attr < 1)).all()
    trainable(dataset)


# -- damaged ----------------------------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_told(tmp_path: Path) -> None:
    heterophilous_file(tmp_path / "texas.npz")
    root = tmp_path / "root"
    (refused,) = import_files(tmp_path, root)
    assert refused.outcome == "refused"
    assert "sha256" in refused.reason
    assert not root.exists()
    for name in ("texas", "minesweeper"):
        path = root / "heterophilous" / name / "raw" / f"{name}.npz"
        path.parent.mkdir(parents=True)
        heterophilous_file(path)
        with pytest.raises(DamagedDataError, match=f"{name}.npz is damaged or another file: its sha256 is"):
            load(name, root)


@pytest.mark.usefixtures("any_content")
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"\x80\x04K\x01."])
def test_unreadable_files_are_named(content: bytes, tmp_path: Path) -> None:
    for name in FROM_FILES:
        for source in ENTRIES[name].sources:
            root = tmp_path / name / str(ENTRIES[name].sources.index(source))
            for file in source.files:
                (root / file.path).parent.mkdir(parents=True, exist_ok=True)
                (root / file.path).write_bytes(content)
            with pytest.raises(DamagedDataError, match=str(root)):
                load(name, root)


@pytest.mark.usefixtures("any_content")
def test_nothing_is_run(tmp_path: Path) -> None:
    """Wherever a pickle could be, there is one that would run code."""
    bomb = Bomb(tmp_path / "crater")
    plain = pickle.dumps([bomb])
    for name in FROM_FILES:
        for i, source in enumerate(ENTRIES[name].sources):
            root = tmp_path / name / str(i)
            for file in source.files:
                path = root / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.suffix == ".pt":
                    torch.save([bomb], path)
                elif path.suffix == ".npz":
                    np.savez(path, node_features=np.array([bomb], dtype=object), node_ptr=np.zeros(1))
                elif path.suffix == ".gz":
                    path.write_bytes(gzip.compress(plain))
                else:
                    path.write_bytes(plain)
            with pytest.raises(DamagedDataError):
                load(name, root)
    assert not bomb.crater.exists()
    pickle.loads(pickle.dumps(bomb))
    assert bomb.crater.exists()  # it would have


def test_a_storage_inside_a_pickle_is_not_run_either(tmp_path: Path) -> None:
    bomb, path = Bomb(tmp_path / "crater"), tmp_path / "tensors.pickle"
    tensors = {"x": torch.arange(3), "y": [torch.ones(2, 2, dtype=torch.int8)], "z": np.float64(2.0)}
    path.write_bytes(pickle.dumps(tensors))
    read = read_pickle(path)
    assert torch.equal(read["x"], tensors["x"])  # type: ignore[arg-type]
    assert read["z"] == 2.0

    class Inner:
        def __reduce__(self) -> tuple[Any, ...]:
            torch.save([bomb], tmp_path / "inner.pt")
            return torch.storage._load_from_bytes, ((tmp_path / "inner.pt").read_bytes(),)

    path.write_bytes(pickle.dumps(Inner()))
    with pytest.raises(DamagedDataError, match="could run code"):
        read_pickle(path)
    assert not bomb.crater.exists()
    pickle.loads(pickle.dumps(bomb))
    assert bomb.crater.exists()  # it would have


@pytest.mark.parametrize("read", [read_npz, read_pickle, read_torch])
def test_absent_files_are_absent_not_damaged(read: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")


# -- import -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_content")
def test_import_twice_changes_nothing_and_repairs(tmp_path: Path) -> None:
    heterophilous_file(tmp_path / "actor.npz")
    root = tmp_path / "elsewhere"
    assert [one.outcome for one in import_files(tmp_path, root)] == ["imported"]
    (again,) = [one for one in import_files(tmp_path, root) if one.found.parent == tmp_path]
    assert again.outcome == "already there"
    there = root / again.path
    there.write_bytes(b"broken")
    outcomes = [one.outcome for one in import_files(tmp_path, root) if one.found.parent == tmp_path]
    assert outcomes == ["imported"]
    assert there.read_bytes() == (tmp_path / "actor.npz").read_bytes()


def test_import_takes_folders_only_and_overlooks_the_rest(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "broken.zip").write_bytes(b"no archive")
    assert import_files(tmp_path, tmp_path / "root") == []
    with pytest.raises(NotADirectoryError, match="must be a folder"):
        import_files(tmp_path / "notes.txt", tmp_path / "root")
