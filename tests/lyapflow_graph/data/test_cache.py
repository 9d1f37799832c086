"""What is kept is what was made: whole, checked, and made once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lyapflow_graph.data import GraphSet, load
from lyapflow_graph.data.cache import cached, write_atomically


def never() -> dict[str, Tensor]:
    raise AssertionError("it was made before")


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=4),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]),
    st.integers(-(2**40), 2**40),
)
def test_what_is_read_is_what_was_made(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int]], dtype: torch.dtype, value: int
) -> None:
    root = tmp_path_factory.mktemp("cache")
    made = {f"{place}/name": torch.full(shape, value).to(dtype) for place, shape in enumerate(shapes)}
    cached(root, "some/name", {"a": 1}, lambda: made)
    read = cached(root, "some/name", {"a": 1}, never)
    assert list(read) == list(made)
    for name, tensor in made.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_every_option_has_its_own_file(tmp_path: Path) -> None:
    for i in range(3):
        cached(tmp_path, "x", {"seed": i}, lambda i=i: {"x": torch.tensor([i])})  # type: ignore[misc]
    for i in range(3):
        assert cached(tmp_path, "x", {"seed": i}, never)["x"].tolist() == [i]
    with pytest.raises(AssertionError, match="made before"):
        cached(tmp_path, "y", {"seed": 0}, never)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: str) -> None:
    made = {"x": torch.arange(100.0)}
    cached(tmp_path, "x", {}, lambda: made)
    (path,) = (tmp_path / "cache").glob("*.bin")
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "cut": content[:-7],
            "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "empty": b"",
            "other": b"something else",
        }[damage]
    )
    with pytest.warns(UserWarning, match=r"cache .* is damaged and is made again"):
        again = cached(tmp_path, "x", {}, lambda: made)
    assert torch.equal(again["x"], made["x"])
    assert path.read_bytes() == content
    assert torch.equal(cached(tmp_path, "x", {}, never)["x"], made["x"])


def test_without_a_place_to_write_it_is_made_every_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    for _ in range(2):
        with pytest.warns(UserWarning, match="x is not kept"):
            assert cached(tmp_path, "x", {}, lambda: {"x": torch.ones(1)})["x"].tolist() == [1.0]


def test_errors_of_what_makes_it_are_its_own(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="made before"):
        cached(tmp_path, "x", {}, never)
    assert not list((tmp_path / "cache").glob("*.bin"))

    def missing() -> dict[str, Tensor]:
        raise FileNotFoundError("a file that is needed")

    with pytest.raises(FileNotFoundError, match="a file that is needed"):  # not taken for a cache without a place
        cached(tmp_path, "x", {}, missing)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def digest_of_all(root: Path) -> str:
    """Of everything that is generated."""
    digest = hashlib.sha256()
    for name in ("gpp/sssp", "sbm-pattern", "sbm-cluster", "minesweeper-grid", "barbell"):
        options: dict[str, Any] = {"size": 8} if name == "minesweeper-grid" else {"graphs": 22}
        dataset = load(name, root, pe={"laplacian_eigenvector_pe": 3, "random_walk_pe": 2}, **options)
        for part in (dataset.train, dataset.val, dataset.test):
            for key, tensor in sorted(GraphSet.of(part).tensors.items()):
                digest.update(key.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


SLOWLY = """
import pathlib, sys, time
import torch
torch.set_num_threads(1)
import lyapflow_graph.data.properties as properties
from tests.lyapflow_graph.data.test_cache import digest_of_all

root, draw = pathlib.Path(sys.argv[1]), properties._draw
def slow(*arguments):
    (root / "making").touch()
    time.sleep(1)
    return draw(*arguments)
properties._draw = slow
print(digest_of_all(root))
"""


def test_processes_agree_and_only_one_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same graphs in every process, from the same seed; of two at once one waits for the other."""
    here = digest_of_all(tmp_path / "here")
    shared = tmp_path / "shared"
    shared.mkdir()
    command = [sys.executable, "-c", SLOWLY, str(shared)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as other:
        while not (shared / "making").exists():
            assert other.poll() is None
            time.sleep(0.02)
        monkeypatch.setattr("lyapflow_graph.data.properties._draw", never)
        waited = load("gpp/sssp", shared, graphs=22)
        there = other.communicate(timeout=120)[0]
    assert other.returncode == 0
    assert there.strip() == here
    assert len(waited.train) == 16


def test_a_set_is_generated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("sbm-cluster", tmp_path, graphs=11, seed=4, pe={"random_walk_pe": 3})
    monkeypatch.setattr("lyapflow_graph.data.sbm.clustered", never)
    monkeypatch.setattr("lyapflow_graph.data.encodings._structures", never)
    again = load("sbm-cluster", tmp_path, graphs=11, seed=4, pe={"random_walk_pe": 3})
    for a, b in zip(first.test, again.test, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.edge_index, b.edge_index)
        assert torch.equal(a.random_walk_pe, b.random_walk_pe)
