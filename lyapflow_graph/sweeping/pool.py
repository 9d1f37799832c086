"""Several workers as processes of their own, which are watched: one that is killed is replaced, its trial not lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import final

import torch

from .plan import Sweep
from .storage import open_storage
from .trials import Trials
from .worker import Say, Worker

_STOP = "stop"
_PATIENCE = 60.0  # seconds for a batch to end after Ctrl-C, before a worker is ended


@final
class Pool:
    """Workers as processes.

    Args:
        trials: What they work on.
        url: Of the storage, which each opens for itself.
        workers: How many.
        say: Called with the lines that they have to say.
    """

    def __init__(self, trials: Trials, url: str, workers: int, say: Say) -> None:
        self.trials, self.url, self.workers, self.say = trials, url, workers, say
        self._running: dict[Connection, BaseProcess] = {}
        self._begun: set[Connection] = set()
        self._died = 0

    def run(self) -> None:
        """Until nothing is left to do, an error stops it, or Ctrl-C does."""
        try:
            while self._start():
                for connection in wait(list(self._running)):
                    assert isinstance(connection, Connection)
                    self._hear(connection)
        finally:
            self._stop()

    # -- parts of it --------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        """As many workers as there is work for; whether there are any."""
        while len(self._running) < self.workers and self.trials.left():
            ours, theirs = multiprocessing.Pipe()
            threads = max(1, _cores() // self.workers)
            arguments = (self.trials.sweep, self.trials.folder, self.url, theirs, threads, os.getpid())
            # Not forked: threads of torch do not survive that.
            process = multiprocessing.get_context("spawn").Process(target=_work, args=arguments, daemon=True)
            with _deaf():
                process.start()
            theirs.close()
            self._running[ours] = process
        return bool(self._running)

    def _hear(self, connection: Connection) -> None:
        try:
            kind, text = connection.recv()
        except (EOFError, OSError):
            self._bury(connection)
            return
        if kind == "error":
            raise RuntimeError(f"a worker stopped: {text}; all is kept, and the same command with --resume goes on")
        if kind == "begun":
            self._begun.add(connection)
        else:
            self._died = 0
            self.say(text)

    def _bury(self, connection: Connection) -> None:
        process = self._running.pop(connection)
        process.join()
        connection.close()
        if process.exitcode == 0:
            return
        lost, code = self.trials.recover(), process.exitcode
        what = f"killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        self._died += not lost
        if self._died > self.workers:
            raise RuntimeError(f"workers are {what} before they begin a trial; is there enough memory?")
        again = f"; trial {', '.join(map(str, lost))} is tried again" if lost else ""
        self.say(f"a worker was {what}{again}")

    def _stop(self) -> None:
        """Let those that are left end after the batch they are at; a second Ctrl-C ends them at once."""
        for connection, process in self._running.items():
            with contextlib.suppress(OSError):
                connection.send(_STOP)
            if connection not in self._begun and not connection.poll():
                process.kill()  # it has no trial yet, and would not listen
            elif process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGINT)
        try:
            for process in self._running.values():
                process.join(_PATIENCE)
        finally:
            for process in self._running.values():
                process.kill()
                process.join()
            self._running.clear()
            self.trials.recover()


def _work(sweep: Sweep, folder: Path, url: str, connection: Connection, threads: int, parent: int) -> None:
    """What a worker's process does."""
    # Ctrl-C is for the process that started this one, which passes it on: once, and when it is listened to.
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(threads)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # of the latter there is nobody left to tell
        try:
            with warnings.catch_warnings(), open_storage(url) as storage:
                warnings.showwarning = lambda message, *rest, **more: connection.send(("line", f"warning: {message}"))
                connection.send(("begun", ""))
                worker = Worker(Trials(sweep, folder, storage), lambda line: connection.send(("line", line)))
                worker.run(stopped=lambda: connection.poll() or os.getppid() != parent)
        except Exception as error:
            connection.send(("error", f"{type(error).__name__}: {error}"))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started here ignores Ctrl-C until it says otherwise. Only the main thread may decide that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
