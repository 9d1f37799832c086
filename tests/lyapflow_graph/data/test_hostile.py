"""Files of data that were made to do harm."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lyapflow_graph.data import DamagedDataError, import_files, load
from lyapflow_graph.data.cache import _header, cached
from lyapflow_graph.data.reading import read_npz, read_pickle, read_torch, unpack
from lyapflow_graph.data.registry import ENTRIES
from tests.lyapflow_graph.data.test_own import arrays


class Bomb:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder / "sprung"),)


def npy(shape: tuple[int, ...], dtype: str = "<f8", content: bytes = b"") -> bytes:
    """An array whose header claims more than there is."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + content


def packed(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_an_array_claims_no_more_than_its_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path / "graphs.npz", x=npy((2**30,)))
    assert path.stat().st_size < 300
    monkeypatch.setattr(np, "load", lambda *given, **more: pytest.fail("it was loaded"))
    with pytest.raises(DamagedDataError, match=r"x\.npy claims 8,589,934,592 bytes"):
        load(str(tmp_path))


@pytest.mark.parametrize("shape", [(-1,), (2**62, 2**62), (0, 2**70), ("x",)])
def test_shapes_that_are_none(tmp_path: Path, shape: Any) -> None:
    with pytest.raises(DamagedDataError, match=r"graphs\.npz"):
        read_npz(packed(tmp_path / "graphs.npz", x=npy(shape)))


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    zeros = bytes(2**20)
    path = tmp_path / "graphs.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as part:
        part.write(npy((300 * 2**20,), "|u1"))
        for _ in range(300):
            part.write(zeros)
    with pytest.raises(DamagedDataError, match="more than 250 times; save it uncompressed"):
        read_npz(tmp_path / "graphs.npz")
    with pytest.raises(DamagedDataError, match="more than 250 times"):
        unpack(tmp_path / "images.gz", gzip.compress(bytes(300 * 2**20), 6))


def test_objects_in_an_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "graphs.npz", x=np.array([Bomb(tmp_path)], dtype=object))
    with pytest.raises(DamagedDataError, match="Object arrays cannot be loaded"):
        load(str(tmp_path))
    assert not (tmp_path / "sprung").exists()


def test_pickles_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "plain.pickle").write_bytes(pickle.dumps(Bomb(tmp_path)))
    torch.save(Bomb(tmp_path), tmp_path / "torch.pt")
    for read, name in ((read_pickle, "plain.pickle"), (read_torch, "plain.pickle"), (read_torch, "torch.pt")):
        with pytest.raises(DamagedDataError, match=r"could run code|cannot be read"):
            read(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_a_pickle_takes_no_memory_that_it_only_claims(tmp_path: Path) -> None:
    class Claim:
        def __reduce__(self) -> Any:
            return np.ndarray, ((2**40,),)

    class Empty:
        def __reduce__(self) -> Any:
            return np._core.multiarray._reconstruct, (np.ndarray, (2**40,), b"b")  # type: ignore[attr-defined]

    path = tmp_path / "some.pickle"
    path.write_bytes(pickle.dumps(Claim()))
    with pytest.raises(DamagedDataError, match="cannot be read"):
        read_pickle(path)
    path.write_bytes(pickle.dumps(Empty()))
    assert read_pickle(path).nbytes == 0
    sound = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(2), "c": [np.array(["x"])]}
    path.write_bytes(pickle.dumps(sound))
    assert read_pickle(path)["a"].tolist() == sound["a"].tolist()  # type: ignore[attr-defined]


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "graphs.npz")
    with pytest.raises(FileNotFoundError):
        load(str(tmp_path))
    with pytest.raises(DamagedDataError, match="is not a file"):
        read_npz(tmp_path / "graphs.npz")


@pytest.mark.parametrize("index", [[[0, 7], [1, 0]], [[-1, 0], [1, 0]]])
def test_edges_to_nodes_that_are_not_there(tmp_path: Path, index: list[list[int]]) -> None:
    np.savez(tmp_path / "graphs.npz", **(arrays(4) | {"edge_index": np.tile(np.array(index), 4)}))
    with pytest.raises(DamagedDataError, match="edge_index"):
        load(str(tmp_path))


@pytest.mark.parametrize("name", ["node_ptr", "edge_ptr"])
@pytest.mark.parametrize("change", [[0, 3, -3, 9, 12], [0, 9, 3, 6, 12], [3, 3, 6, 9, 12]])
def test_pointers_that_go_back(tmp_path: Path, name: str, change: list[int]) -> None:
    given = arrays(4)
    last = given[name][-1]
    np.savez(tmp_path / "graphs.npz", **(given | {name: np.array([*change[:-1], last])}))
    with pytest.raises(DamagedDataError, match="pointer"):
        load(str(tmp_path))


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    entry = ENTRIES["texas"]
    file = entry.sources[0].files[0]
    folder, root = tmp_path / "downloads", tmp_path / "deep" / "root"
    folder.mkdir()
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.writestr(f"../../../{file.found_as[0]}", b"wrong")
    found = import_files(folder, root)
    assert all(one.path == file.path for one in found)
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents]
    assert outside == [folder / "some.zip"]


@pytest.mark.parametrize(
    "members",
    [{"0:float32:x": npy((2**30,))}, {"0:nn:x": npy((0,))}, {"x": npy((0,))}, {"0:load:x": npy((0,))}],
    ids=["claim", "module", "no-name", "function"],
)
def test_a_cache_that_somebody_wrote_is_made_again(tmp_path: Path, members: dict[str, bytes]) -> None:
    def make() -> dict[str, torch.Tensor]:
        return {"x": torch.ones(2)}

    cached(tmp_path, "ones", {}, make)
    path = next((tmp_path / "cache").glob("*.bin"))
    payload = packed(tmp_path / "evil.npz", **members).read_bytes()
    path.write_bytes(_header(payload).encode() + b"\n" + payload)
    with pytest.warns(UserWarning, match="is not one and is made again"):
        assert cached(tmp_path, "ones", {}, make)["x"].tolist() == [1, 1]
