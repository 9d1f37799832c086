"""A run from its configuration to its record."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
import torch.utils.deterministic
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.seed import isolate_rng
from torch_geometric.data import Data

from lyapflow.importing import NameFromFile

from ..data.dataset import GraphDataset
from .callback import OnEpoch, RunCallback, Stopped, seed_everything
from .checkpoint import Checkpoint, load_checkpoint
from .config import Config, DataConfig, differences, read_toml
from .energy_monitor import flow_of
from .export import export_model
from .files import DamagedError, refuse_links, remove_leftovers, write
from .history import History
from .labels import check_labels, regression_labels
from .loaders import make_loader
from .model import make_model
from .module import GraphTask
from .plots import draw_run
from .progress import EpochBar
from .record import Record, machine, peak_memory, versions
from .schema import ConfigError

_PRECISIONS: dict[str, Any] = {"64": "32-true", "32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


class Interrupted(KeyboardInterrupt):
    """By Ctrl-C; what was done is saved, and the message says how to go on.

    >>> from lyapflow_graph.training import Interrupted
    >>> issubclass(Interrupted, KeyboardInterrupt)
    True
    """


def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    on_epoch: OnEpoch | None = None,
    dataset: GraphDataset | None = None,
    test: bool = True,
    figures: bool = True,
    progress: bool = True,
) -> Record:
    """Train a model, test it, and leave everything about it in a folder.

    The folder has `config.toml`, `metrics.csv`, TensorBoard's files, checkpoints; and in the end `model.pt`,
    figures and `record.json`. Under `torchrun` all processes share every batch.

    Args:
        config: What to do.
        folder: Of the run.
        resume: Go on with the run that is in the folder, bit for bit as if it had never stopped; start it if there is
            none; give its record if it has ended.
        on_epoch: Called after every epoch with its number and its metrics. If it raises :class:`Pruned`, the run ends
            there, without a test.
        dataset: The data, where it is at hand; by default it is loaded as the configuration says.
        test: Whether to look at the test set. If not, it is taken away before anything is done, and the record says
            "untested"; with `resume` the test can be made later.
        figures: Whether to draw the curves of the run in the end.
        progress: Show a progress bar, on a terminal.

    >>> import tempfile, torch
    >>> from torch_geometric.data import Data
    >>> from lyapflow_graph.data import GraphDataset
    >>> from lyapflow_graph.training import Config, DataConfig, ModelConfig, TrainingConfig, train
    >>> _ = torch.manual_seed(0)
    >>> ring = torch.stack([torch.arange(6), torch.arange(1, 7) % 6])
    >>> graphs = [Data(x=torch.randn(6, 2), edge_index=ring, y=torch.randn(1, 1)) for _ in range(4)]
    >>> data = GraphDataset("rings", "graph", graphs[:2], graphs[2:3], graphs[3:], 2, 1, None, "l1", "mae")
    >>> config = Config(DataConfig("rings"), ModelConfig("tango", 4), TrainingConfig(epochs=2))
    >>> record = train(config, tempfile.mkdtemp(), dataset=data)
    >>> record.status, record.epochs, record.metric
    ('finished', 2, 'mae')
    """
    folder, rank = Path(folder), int(os.environ.get("RANK", 0))
    if resume and (folder / "record.json").exists():
        _check_same(config, folder)
        record = Record.load(folder)
        if not (test and record.status == "untested"):
            return record
    if rank == 0:
        refuse_links(folder)
        _check_folder(config, folder, resume)
    with _settled(), isolate_rng():
        data = load_dataset(config.data) if dataset is None else dataset
        data = prepared(data if test else dataclasses.replace(data, test=()), config)
        return _Run(config, folder, data, resume, test, on_epoch, progress and rank == 0).complete(figures)


class _Run:
    """The parts of a run: set up, trained, tested, written down."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        data: GraphDataset,
        resume: bool,
        test: bool,
        on_epoch: OnEpoch | None,
        progress: bool,
    ) -> None:
        self.config, self.folder, self.data = config, folder, data
        self.shard = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.judged: tuple[Literal["val", "test"], ...] = ("val", "test") if test else ("val",)
        check_labels(data, self.judged)
        seed_everything(config.seed)
        self.model = make_model(config.model.kind, config.model.hidden_channels, config.model.options, data)
        self.model.to(torch.float64 if config.training.precision == "64" else torch.float32)
        if config.training.standardize:
            self.model.standardize(regression_labels(data))
        train = make_loader(data.train, config.training, config.seed, True, self.shard)
        self.loaders = [
            train,
            *(
                make_loader(getattr(data, part), config.training, config.seed, False, self.shard)
                for part in self.judged
            ),
        ]
        checkpoint = load_checkpoint(folder) if resume and folder.exists() else None
        self.history = History(data.metric, flow_of(self.model) is not None)
        if checkpoint is not None:
            self._restore(checkpoint)
        self.task = GraphTask(self.model, data, config.training)
        self.bar = EpochBar(config.training.epochs, len(self.history), progress)
        self.callback = RunCallback(folder, config, self.history, checkpoint, train, self.bar, on_epoch)
        self.trainer = _make_trainer(config, len(self.history), self.callback, self.shard[1])

    def _restore(self, checkpoint: Checkpoint) -> None:
        if checkpoint.columns != self.history.columns:
            raise ValueError(
                f"the checkpoint in {self.folder} has other metrics than the configuration: {checkpoint.columns}"
            )
        self.history = History(self.data.metric, flow_of(self.model) is not None, checkpoint.history)
        try:
            for weights in (checkpoint.best, checkpoint.weights):
                self.model.load_state_dict(dict(weights))
        except RuntimeError as error:
            raise DamagedError(f"the checkpoint in {self.folder} is not of this model: {error}") from error

    def complete(self, figures: bool) -> Record:
        if self.shard[0] == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
            write(self.folder / "config.toml", self.config.to_toml())
        self._fit()
        if self.callback.pruned:
            return self._record(None, figures)
        if self.config.training.keep == "best":
            self.model.load_state_dict(dict(self.callback.best))
        if "test" not in self.judged:
            return self._record(None, figures)
        seed_everything(self.config.seed, self.config.training.epochs + 1)
        self.trainer.test(self.task, self.loaders[2], verbose=False)
        return self._record(self.task.evaluated, figures)

    def _fit(self) -> None:
        if self.callback.is_over:
            return
        try:
            with self.bar, self.callback.interruptible():
                self.trainer.fit(self.task, self.loaders[0], self.loaders[1])
        except Stopped:
            done = len(self.history)
            raise Interrupted(
                f"interrupted in epoch {done + 1}; {done} epochs are saved in {self.folder}. The same command with "
                "--resume goes on from there"
            ) from None

    def _record(self, tested: dict[str, float] | None, figures: bool) -> Record:
        config, history, device = self.config, self.history, self.trainer.strategy.root_device
        count = None if self.task.monitor is None else self.task.monitor.count
        kept = history.best_epoch if config.training.keep == "best" else len(history)
        record = Record(
            status="pruned" if self.callback.pruned else "untested" if tested is None else "finished",
            config=config.to_dict(),
            hash=config.hash,
            family=config.family,
            seed=config.seed,
            dataset=self.data.name,
            metric=self.data.metric,
            provenance=dict(self.data.provenance),
            parameters=sum(weight.numel() for weight in self.model.parameters()),
            epochs=len(history),
            best_epoch=history.best_epoch,
            val=history[kept - 1][f"val_{self.data.metric}"],
            test=None if tested is None else tested["metric"],
            test_loss=None if tested is None else tested["loss"],
            seconds=self.callback.seconds,
            peak_memory=peak_memory(device),
            descent=None if tested is None or count is None else dataclasses.asdict(count),
            versions=versions(),
            machine=machine(device, self.shard[1]),
        )
        return self._write(record, figures) if self.shard[0] == 0 else record

    def _write(self, record: Record, figures: bool) -> Record:
        """Everything that belongs to the end of a run; the record comes last and says that all is there."""
        self.history.save(self.folder / "metrics.csv")
        if record.status != "pruned":
            export_model(self.folder / "model.pt", self.model, self.config, self.data)
            if figures:
                draw_run(self.history, self.folder)
        record.save(self.folder)
        return record


def prepared(data: GraphDataset, config: Config) -> GraphDataset:
    """The dataset as the configuration wants it: without features of edges, or in double precision."""
    without = not config.data.edge_features and data.edge_dim is not None
    double = config.training.precision == "64"
    if not (without or double):
        return data

    def change(graph: Data) -> Data:
        graph = graph.clone()
        if without:
            del graph.edge_attr
        return graph.apply(lambda x: x.double() if x.is_floating_point() else x) if double else graph

    def changed(graphs: Sequence[Data]) -> list[Data]:
        return [change(graphs[i]) for i in range(len(graphs))]

    parts = {name: changed(getattr(data, name)) for name in ("train", "val", "test")}
    return dataclasses.replace(data, **parts, edge_dim=None if without else data.edge_dim)  # type: ignore[arg-type]


def load_dataset(data: DataConfig) -> GraphDataset:
    """The data that a configuration names."""
    from ..data import load

    if isinstance(data.name, NameFromFile) and "download" in data.options:
        raise ConfigError(f"data.options of {data.name}: a file cannot ask for a download; give the data yourself")
    try:
        return load(data.name, data.root, split=data.split, pe=data.pe, **data.options)
    except TypeError as error:
        raise ConfigError(f"data.options of {data.name}: {error}") from error


def _make_trainer(config: Config, done: int, callback: RunCallback, processes: int) -> pl.Trainer:
    training = config.training
    cuda = training.device == "cuda" or (training.device == "auto" and torch.cuda.is_available())
    if cuda and not torch.cuda.is_available():
        raise ConfigError('training.device is "cuda", but torch sees no CUDA device here')
    if training.precision == "16" and not cuda:
        raise ConfigError('training.precision "16" needs CUDA; on a CPU there is "bf16"')
    several: dict[str, Any] = {"devices": 1}
    if processes > 1:
        # Parts of a model may have no share in the loss, as those of a batch without edges.
        several["strategy"] = DDPStrategy(find_unused_parameters=True, process_group_backend="nccl" if cuda else "gloo")
        several["devices"] = int(os.environ["LOCAL_WORLD_SIZE"])
        several["num_nodes"] = processes // several["devices"]
    return pl.Trainer(
        accelerator="cuda" if cuda else "cpu",
        max_epochs=max(1, training.epochs - done),  # Lightning counts from where it starts
        callbacks=[callback],
        precision=_PRECISIONS[training.precision],
        accumulate_grad_batches=training.accumulate,
        gradient_clip_val=training.clip,
        deterministic="warn" if training.deterministic else None,
        inference_mode=False,  # the energy takes a gradient in evaluation too
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **several,
    )


def _check_folder(config: Config, folder: Path, resume: bool) -> None:
    if not (folder / "config.toml").exists():
        return
    if not resume:
        raise FileExistsError(f"{folder} has a run already; go on with it by --resume, or choose another folder")
    _check_same(config, folder)


def _check_same(config: Config, folder: Path) -> None:
    found = differences(Config.from_file(read_toml(folder / "config.toml")), config)
    if found:
        raise ConfigError(f"the run in {folder} has another configuration (there / here): {'; '.join(found)}")


@contextlib.contextmanager
def _settled() -> Iterator[None]:
    """Without what Lightning says about the machine; and what it sets in torch is put back in the end."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = memory.fill_uninitialized_memory
    try:
        # Deterministic algorithms write to all memory that is asked for; nothing here reads what nobody wrote.
        memory.fill_uninitialized_memory = False
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning.*")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = fill
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
