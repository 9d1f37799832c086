"""Whatever stops a run, going on with it gives bit for bit what would have come of it."""

from __future__ import annotations

import dataclasses
import errno
import functools
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lyapflow_graph.training import ConfigError, DamagedError, Diverged, Interrupted, Pruned, Record
from lyapflow_graph.training import files as files_module
from lyapflow_graph.training import train as train_and_draw
from lyapflow_graph.training.checkpoint import load_checkpoint
from lyapflow_graph.training.files import load_tensors, save_tensors
from tests.lyapflow_graph.training.cases import (
    assert_same_run,
    checkpoint_of,
    graphs_with_classes,
    graphs_with_values,
    one_graph,
    small,
)

train = functools.partial(train_and_draw, figures=False)

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cosine": {"scheduler": "cosine", "warm_up": 2, "clip": 0.1},
    "plateau": {"scheduler": "plateau", "plateau_patience": 1, "plateau_factor": 0.1},
    "accumulated": {"accumulate": 2, "optimizer": "adam", "weight_decay": 0.1},
    "bf16": {"precision": "bf16", "guard_from": 0.5},
    "64": {"precision": "64", "keep": "last"},
}


class Crash(BaseException):
    """Nobody catches it."""


def crash_after(epochs: int) -> Any:
    def on_epoch(epoch: int, row: Mapping[str, float]) -> None:
        if epoch == epochs:
            raise Crash

    return on_epoch


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_is_the_same_bit_for_bit(variant: str, tmp_path: Path) -> None:
    data = graphs_with_values()
    config = small(data, **VARIANTS[variant])
    train(config, tmp_path / "whole", dataset=data)
    for epochs in (1, 3):
        with pytest.raises(Crash):
            train(config, tmp_path / "broken", resume=True, dataset=data, on_epoch=crash_after(epochs))
    train(config, tmp_path / "broken", resume=True, dataset=data)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("make", [graphs_with_classes, one_graph])
def test_nodes_and_masks_too(make: Any, tmp_path: Path) -> None:
    data = make()
    config = small(data)
    train(config, tmp_path / "whole", dataset=data)
    with pytest.raises(Crash):
        train(config, tmp_path / "broken", dataset=data, on_epoch=crash_after(2))
    train(config, tmp_path / "broken", resume=True, dataset=data)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_runs_are_a_function_of_the_seed(tmp_path: Path) -> None:
    data = graphs_with_values()
    config = small(data)
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    one = train(config, tmp_path / "one", dataset=data)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())
    torch.manual_seed(6)
    two = train(config, tmp_path / "two", dataset=data)
    three = train(dataclasses.replace(config, seed=1), tmp_path / "three", dataset=data)
    assert one.val == two.val != three.val
    assert (tmp_path / "one/model.pt").read_bytes() == (tmp_path / "two/model.pt").read_bytes()


# -- crashes while files are written ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "at"), [("fsync", 2), ("fsync", 5), ("fsync", 11), ("replace", 1), ("replace", 4), ("replace", 6)]
)
def test_a_crash_while_a_file_is_written(moment: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = graphs_with_values()
    config = small(data, epochs=2)
    train(config, tmp_path / "whole", dataset=data)
    count, real = itertools.count(1), getattr(os, moment)

    def crashing(*given: Any, **more: Any) -> Any:
        if next(count) == at:
            raise Crash
        return real(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(files_module.os, moment, crashing)
        with pytest.raises(Crash):
            train(config, tmp_path / "broken", dataset=data)
    train(config, tmp_path / "broken", resume=True, dataset=data)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")
    assert not list((tmp_path / "broken").glob(".*.tmp"))


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = graphs_with_values()
    config = small(data)
    train(config, tmp_path / "whole", dataset=data)
    count, real = itertools.count(1), os.fsync

    def full(descriptor: int) -> None:
        if next(count) > 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(files_module.os, "fsync", full)
        with pytest.raises(OSError, match=r"cannot write .*even\.ckpt: the disk is full; .*"):
            train(config, tmp_path / "broken", dataset=data)
    kept = checkpoint_of(tmp_path / "broken").epochs
    assert kept == 3
    assert not list((tmp_path / "broken").glob(".*.tmp"))
    train(config, tmp_path / "broken", resume=True, dataset=data)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(damage: str, tmp_path: Path) -> None:
    data = graphs_with_values()
    config = small(data)
    train(config, tmp_path / "whole", dataset=data)
    with pytest.raises(Crash):
        train(config, tmp_path / "broken", dataset=data, on_epoch=crash_after(3))
    newest = tmp_path / "broken" / "odd.ckpt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        newest.unlink()
    else:
        newest.write_bytes({"cut": newest.read_bytes()[:-500], "flipped": bytes(content), "empty": b""}[damage])
    if damage == "gone":
        assert checkpoint_of(tmp_path / "broken").epochs == 2
    else:
        with pytest.warns(UserWarning, match=r"odd\.ckpt is damaged.*going on from the one of epoch 2"):
            assert checkpoint_of(tmp_path / "broken").epochs == 2
        with pytest.warns(UserWarning, match="is damaged"):
            train(config, tmp_path / "broken", resume=True, dataset=data)
        assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_only_damaged_checkpoints_are_an_error(tmp_path: Path) -> None:
    data = graphs_with_values()
    with pytest.raises(Crash):
        train(small(data), tmp_path, dataset=data, on_epoch=crash_after(2))
    for path in tmp_path.glob("*.ckpt"):
        path.write_bytes(b"nonsense" * 100)
    with pytest.raises(DamagedError, match="there is no other checkpoint"):
        train(small(data), tmp_path, resume=True, dataset=data)


class Trap:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("trapped"),))


def test_checkpoints_execute_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_tensors(tmp_path / "odd.ckpt", {"format": Trap()})
    with pytest.raises(DamagedError, match="was not written by lyapflow"):
        load_tensors(tmp_path / "odd.ckpt")
    (tmp_path / "even.ckpt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DamagedError):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "trapped").exists()


def test_torch_reads_checkpoints_as_weights_only(tmp_path: Path) -> None:
    data = graphs_with_values()
    train(small(data, epochs=1), tmp_path, dataset=data)
    for name in ("odd.ckpt", "model.pt"):
        assert "weights" in torch.load(tmp_path / name, weights_only=True)


# -- stopping ---------------------------------------------------------------------------------------------------------


def test_interrupted_by_the_user(tmp_path: Path) -> None:
    data = graphs_with_values()
    config = small(data)
    train(config, tmp_path / "whole", dataset=data)
    handler = signal.getsignal(signal.SIGINT)

    def press(epoch: int, row: Mapping[str, float]) -> None:
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match=r"interrupted in epoch 3; 2 epochs are saved in .*--resume"):
        train(config, tmp_path / "broken", dataset=data, on_epoch=press)
    assert signal.getsignal(signal.SIGINT) is handler
    train(config, tmp_path / "broken", resume=True, dataset=data)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_pruned_runs_end_without_a_test(tmp_path: Path) -> None:
    data, seen = graphs_with_values(), []

    def on_epoch(epoch: int, row: Mapping[str, float]) -> None:
        seen.append((epoch, row["val_mae"]))
        if epoch == 2:
            raise Pruned

    record = train(small(data), tmp_path, dataset=data, on_epoch=on_epoch)
    assert (record.status, record.epochs, record.test) == ("pruned", 2, None)
    assert [epoch for epoch, _ in seen] == [1, 2]
    assert record.val == min(value for _, value in seen)
    assert Record.load(tmp_path) == record


def test_a_run_that_has_ended_is_not_done_again(tmp_path: Path) -> None:
    data = graphs_with_values()
    record = train(small(data), tmp_path, dataset=data)
    assert train(small(data), tmp_path, resume=True, dataset=data, on_epoch=crash_after(1)) == record
    with pytest.raises(FileExistsError, match="has a run already; go on with it by --resume"):
        train(small(data), tmp_path, dataset=data)
    with pytest.raises(ConfigError, match=r"another configuration \(there / here\): training.lr: 0.01 / 0.5"):
        train(small(data, lr=0.5), tmp_path, resume=True, dataset=data)


def test_patience(tmp_path: Path) -> None:
    data = graphs_with_values()
    record = train(small(data, epochs=50, patience=2, lr=0.2), tmp_path, dataset=data)
    assert record.epochs == record.best_epoch + 2 < 50


def test_a_plateau_ends_the_training(tmp_path: Path) -> None:
    data = graphs_with_values()
    settings = {"scheduler": "plateau", "plateau_patience": 1, "plateau_factor": 0.01, "min_lr": 1e-5}
    config = small(data, epochs=30, lr=0.05, **settings)
    record = train(config, tmp_path / "whole", dataset=data)
    assert record.epochs < 30
    with pytest.raises(Crash):
        train(config, tmp_path / "broken", dataset=data, on_epoch=crash_after(record.epochs))
    train(config, tmp_path / "broken", resume=True, dataset=data)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    data = graphs_with_values()
    data.train[3].y[:] = float("inf")
    with pytest.raises(Diverged, match=r"the training loss is inf in epoch 1; lower training.lr"):
        train(small(data), tmp_path, dataset=data)
    assert load_checkpoint(tmp_path) is None


def test_a_gradient_that_is_no_number(tmp_path: Path) -> None:
    """It stops the run before a step, which would leave weights that are none either."""
    data = dataclasses.replace(graphs_with_values(), loss="mse")
    data.train[3].y[:] = float("inf")
    with pytest.raises(Diverged, match=r"the gradient is not finite in epoch 1; lower training.lr"):
        train(small(data), tmp_path, dataset=data)
    assert load_checkpoint(tmp_path) is None


# -- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Twenty times, wherever it happens to be: setting up, training, saving, testing, drawing."""
    script = "tests.lyapflow_graph.training.killing"
    done = subprocess.run(
        [sys.executable, "-m", script, str(tmp_path), "20", "0"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "20"
    runs = sorted(path for path in tmp_path.iterdir() if path.name.isdigit())
    assert runs
    for run in runs:
        assert_same_run(tmp_path / "reference", run)
