"""Small sweeps that the tests share, and a server for those that need one."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lyapflow_graph.data.dataset import GraphDataset
from tests.lyapflow_graph.training.cases import graphs_with_values

TOML = """
[data]
name = "tests.lyapflow_graph.sweeping.cases:rings"

[model]
num_steps = 2
hidden_channels = 4

[training]
epochs = 3
batch_size = 2

[sweep]
sampler = "grid"

[sweep.space]
"model.num_steps" = [1, 2]
"training.lr" = [0.01, 0.001]
"""


def rings() -> GraphDataset:
    """Loaded by workers, which are processes of their own."""
    return graphs_with_values()


def write_sweep(folder: Path, text: str = TOML) -> Path:
    path = folder / "rings.toml"
    path.write_text(text)
    return path


class CannotStart(Exception):  # noqa: N818 - a reason to skip a test
    """A server of PostgreSQL, and why not."""


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a database on a server of its own, which ends with this. It refuses to run as root."""
    # Not in a folder of pytest's, into which other users cannot look.
    with tempfile.TemporaryDirectory(prefix="lyapflow-postgres-") as folder, _server(Path(folder)) as url:
        yield url


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    binaries = [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), *map(Path, os.environ["PATH"].split(":"))]
    found = next((path for path in binaries if (path / "initdb").exists() and (path / "pg_ctl").exists()), None)
    if found is None:
        raise CannotStart("there are no programs of PostgreSQL here: initdb and pg_ctl")
    user, other = _other_user(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*command: str) -> None:
        done = subprocess.run([*other, *command], cwd=folder, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise CannotStart(f"{command[0]}: {(done.stderr or done.stdout).strip()}")

    data, settings = str(folder / "data"), f"-p {port} -h 127.0.0.1 -k {folder} -F"
    run(str(found / "initdb"), "-D", data, "-A", "trust", "-U", user, "-N")
    run(str(found / "pg_ctl"), "start", "-w", "-D", data, "-o", settings, "-l", str(folder / "log"))
    try:
        yield f"postgresql+psycopg://{user}@127.0.0.1:{port}/postgres"
    finally:
        run(str(found / "pg_ctl"), "stop", "-w", "-D", data, "-m", "immediate")


def _other_user(folder: Path) -> tuple[str, list[str]]:
    """A user who may run the server, and how to become one."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name, []
    if shutil.which("setpriv") is None:
        raise CannotStart("PostgreSQL does not run as root, and there is no setpriv to become another user")
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        ids = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        return name, ["setpriv", *ids]
    raise CannotStart("PostgreSQL does not run as root, and there is no user postgres or nobody")
