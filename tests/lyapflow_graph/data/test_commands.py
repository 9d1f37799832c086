"""The command `lyapflow data`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lyapflow.cli import main
from lyapflow_graph.data import names


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lyapflow_graph.data.commands.out.width", 200, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LYAPFLOW_ROOT", str(tmp_path / "root"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(("data", *arguments))
    written = capsys.readouterr()
    code = stopped.value.code
    return code if isinstance(code, int) else 0, written.out, written.err


def columns(text: str) -> dict[str, str]:
    """The first column of a table and the second."""
    return {words[0]: words[1] for words in map(str.split, text.splitlines()) if len(words) > 1}


def test_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text, _ = run(capsys, "list")
    assert code == 0
    states = columns(text)
    assert set(names()) <= set(states)
    assert states["gpp/sssp"] == "generated"
    assert states["zinc"] == "missing"
    assert str(tmp_path / "root") in text
    (tmp_path / "heterophilous" / "texas" / "raw").mkdir(parents=True)
    (tmp_path / "heterophilous" / "texas" / "raw" / "texas.npz").touch()
    _, text, _ = run(capsys, "list", "--root", str(tmp_path))
    assert columns(text)["texas"] == "here"


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "show", "barbell", "-o", "cliques=3", "-o", "bridge=2", "--option", "graphs=20")
    assert code == 0
    assert ["train", "16", "128", "288", "96"] in [line.split() for line in text.splitlines()]
    for fact in ("task: node", "loss: mse", "metric: log10_mse, better smaller", "official: False", "cliques: 3"):
        assert fact in text
    code, text, _ = run(capsys, "show", "gpp/diameter", "-o", "graphs=22", "-o", "labels=published")
    assert code == 0
    assert "labels: published" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "zinc"), "the files of 'zinc' are not under"),
        (("show", "barbell", "-o", "size=3"), "barbell has no option 'size'"),
        (("show", "barbell", "-o", "size"), "an option is given as name=value, got 'size'"),
        (("show", "barbell", "--split", "3"), "split of barbell must be a whole number from 0 to 0, got 3"),
        (("show", "nothing"), "name must be a data set"),
        (("import", "no-such-folder"), "folder must be a folder"),
    ],
)
def test_errors_are_told_in_a_line(capsys: pytest.CaptureFixture[str], arguments: Any, message: str) -> None:
    code, _, errors = run(capsys, *arguments)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


def test_import(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    code, _, errors = run(capsys, "import", str(folder))
    assert code == 2
    assert "has no file of a known data set" in errors
    np.savez(folder / "texas.npz", x=np.ones(1))
    code, text, errors = run(capsys, "import", str(folder))
    assert code == 2
    assert "refused" in text
    assert "sha256" in errors
    assert not (tmp_path / "root").exists()
    monkeypatch.setattr("lyapflow_graph.data.sources.SourceFile.check_content", lambda *arguments: None)
    code, text, _ = run(capsys, "import", str(folder), "--root", str(tmp_path / "other"))
    assert code == 0
    assert "imported" in text
    assert (tmp_path / "other" / "heterophilous" / "texas" / "raw" / "texas.npz").is_file()


def test_help_and_what_it_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, text, _ = run(capsys, "--help")
    assert code == 0
    assert "lyapflow data" in text
    assert "import" in text
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch_geometric" else find(name))
    code, _, errors = run(capsys, "list")
    assert code == 2
    assert 'needs torch_geometric: pip install "lyapflow[graph]"' in errors
