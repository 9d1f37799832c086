"""A sweep from its plan to its findings."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import BaseStorage

from ..data.dataset import GraphDataset
from ..training.files import refuse_links, write
from ..training.run import Interrupted, load_dataset
from ..training.schema import ConfigError
from .plan import Sweep, sweep_in
from .pool import Pool
from .result import SweepResult, result_of
from .storage import open_storage, shown
from .trials import Trials, study_name
from .worker import Say, Worker


def run_sweep(
    sweep: Sweep,
    folder: str | Path,
    *,
    workers: int = 1,
    storage: str | None = None,
    resume: bool = False,
    dataset: GraphDataset | None = None,
    say: Say = lambda line: None,
) -> SweepResult:
    """Try configurations, judge them on the validation set, and leave everything in a folder.

    The folder has `sweep.toml`, a folder in `runs` for every run, and in the end `best.toml`, `sweep.md` and
    `sweep.html`. Nothing that is stopped is lost: a trial is gone on with from the last epoch that its run has kept.

    Args:
        sweep: What to try.
        folder: Of the sweep.
        workers: Processes that share the work. With one there is no process but this.
        storage: Where trials are kept: `sqlite:///PATH`, `postgresql+psycopg://USER:PASSWORD@HOST/DATABASE` or
            `journal:PATH`; by default SQLite in the folder.
        resume: Go on with the sweep that is in the folder or the storage, or help with it; start it if there is none.
        dataset: The data, where it is at hand; for one worker only. By default it is loaded as the configuration
            says.
        say: Called with a line about each trial.

    >>> import tempfile, torch
    >>> from torch_geometric.data import Data
    >>> from lyapflow_graph.data import GraphDataset
    >>> from lyapflow_graph.sweeping import Choices, Search, Sweep, run_sweep
    >>> _ = torch.manual_seed(0)
    >>> ring = torch.stack([torch.arange(6), torch.arange(1, 7) % 6])
    >>> graphs = [Data(x=torch.randn(6, 2), edge_index=ring, y=torch.randn(1, 1)) for _ in range(4)]
    >>> data = GraphDataset("rings", "graph", graphs[:2], graphs[2:3], graphs[3:], 2, 1, None, "l1", "mae")
    >>> tables = {"data": {"name": "rings"}, "model": {"hidden_channels": 4}, "training": {"epochs": 2}}
    >>> sweep = Sweep(tables, {"model.num_steps": Choices((1, 2))}, Search())
    >>> found = run_sweep(sweep, tempfile.mkdtemp(), dataset=data)
    >>> found.summary(), found.best.labels["model.num_steps"] in (1, 2)
    ('2 trials: 2 complete', True)
    """
    folder = Path(folder)
    if workers < 1:
        raise ValueError(f"workers must be positive, got {workers}")
    if dataset is not None and workers > 1:
        raise ValueError(f"dataset goes with one worker, got workers={workers}: processes load the data themselves")
    url = storage or f"sqlite:///{folder / 'sweep.db'}"
    refuse_links(folder)
    _check_folder(sweep, folder, resume)
    data = load_dataset(sweep.base.data) if dataset is None else dataset
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with open_storage(url) as opened:
        trials = _trials(sweep, folder, opened, url, resume, data)
        write(folder / "sweep.toml", sweep.to_toml())
        for number in trials.recover():
            say(f"trial {number} was cut off; it is tried again")
        try:
            if workers == 1:
                Worker(trials, say, dataset).run()
            else:
                Pool(trials, url, workers, say).run()
        except KeyboardInterrupt:
            found = _saved(trials)
            raise Interrupted(
                f"interrupted; {found.summary()}. All is kept in {folder}; the same command with --resume goes on there"
            ) from None
        return _saved(trials)


def _saved(trials: Trials) -> SweepResult:
    found = result_of(trials)
    found.save(trials.folder)
    return found


def _check_folder(sweep: Sweep, folder: Path, resume: bool) -> None:
    if not (folder / "sweep.toml").exists():
        return
    if not resume:
        raise FileExistsError(f"{folder} has a sweep already; go on with it by --resume, or choose another folder")
    found = sweep_in(folder).differences(sweep)
    if found:
        raise ConfigError(f"the sweep in {folder} is another one (there / here): {'; '.join(found)}")


def _trials(sweep: Sweep, folder: Path, opened: BaseStorage, url: str, resume: bool, data: GraphDataset) -> Trials:
    name = study_name(sweep)
    known = name in optuna.get_all_study_names(opened)
    if known and not resume:
        raise FileExistsError(
            f"the storage {shown(url)} has this sweep already ({name}); go on with it by --resume, change sweep.seed "
            "for another one, or remove it by `optuna delete-study`"
        )
    if not known and (folder / "sweep.toml").exists():
        raise ConfigError(f"the sweep in {folder} is not in the storage {shown(url)}: give the --storage it began with")
    return Trials(sweep, folder, opened, data.metric)
