"""The demonstration at a tiny size: what it says is what was measured, and every file is where it says."""

from __future__ import annotations

import base64
import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import demo
from examples.demo_page import Figure, page
from lyapflow import DescentCount
from lyapflow_graph.data import load
from lyapflow_graph.losses import judged
from lyapflow_graph.metric_states import MeanError
from lyapflow_graph.training import Record
from lyapflow_graph.training.model import make_model
from solvers import rises

PNG = b"\x89PNG"
TANGO = ("tango_plain_euler", "tango_guaranteed")


@dataclasses.dataclass(frozen=True)
class Shown:
    out: Path
    text: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Into a folder in which an earlier one has left its runs."""
    out = tmp_path_factory.mktemp("demo")
    for name in ("gatedgcn", *TANGO):
        (out / "trained" / name).mkdir(parents=True)
        (out / "trained" / name / "config.toml").write_text("of an earlier demonstration")
    text: list[str] = []
    show_barbell = demo.show_barbell
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "show_barbell", lambda out: show_barbell(out, train_steps=1))
        patch.setattr("builtins.print", lambda *parts, sep=" ", **_: text.append(sep.join(map(str, parts))))
        demo.main(["--epochs", "2", "--graphs", "22", "--out", str(out)])
    return Shown(out, "\n".join(text))


def test_all_files_are_where_it_says(shown: Shown) -> None:
    files = re.findall(rf"^  ({re.escape(str(shown.out))}\S*)", shown.text, re.MULTILINE)
    assert len(files) == 8
    assert all(Path(file).exists() for file in files)
    for name in ("barbell", "training", "predictions", "energy"):
        assert (shown.out / f"{name}.png").read_bytes().startswith(PNG)


def test_the_table_is_what_the_records_say(shown: Shown) -> None:
    rows = [re.split("  +", line.strip()) for line in shown.text.splitlines() if line.startswith("  ")]
    for name, folder in zip(demo.MODELS, ("gatedgcn", *TANGO), strict=True):
        record = Record.load(shown.out / "trained" / folder)
        assert record.epochs == 2
        assert record.test is not None
        (cells,) = (row[1:-1] for row in rows if row[0] == name and len(row) > 1)
        count = record.descent
        assert cells == [
            f"{record.val:.3f}",
            f"{record.test:.3f}",
            "-" if count is None else f"{count['rising_systems']} of {count['systems']}",
            f"{record.parameters:,}",
            str(record.best_epoch),
        ]


def test_the_page_has_the_table_and_all_figures_inside(shown: Shown) -> None:
    text = (shown.out / "report.html").read_text()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(pictures) == 4
    assert all(base64.b64decode(picture).startswith(PNG) for picture in pictures)
    assert len(re.findall("src=|href=", text)) == 4  # nothing is fetched from elsewhere
    for name in ("gatedgcn", *TANGO):
        assert f"<td>{Record.load(shown.out / 'trained' / name).test:.3f}</td>" in text


def test_certificates_are_counts_over_the_whole_test_set(shown: Shown) -> None:
    test = load("gpp/eccentricity", shown.out / "data", graphs=22).test
    for name in TANGO:
        count = DescentCount(**(Record.load(shown.out / "trained" / name).descent or {}))
        energy = demo.energies(shown.out / "trained" / name, test)
        assert energy is not None
        assert energy.shape == (6, len(test)) == (count.steps // count.systems + 1, count.systems)
        assert int(rises(energy).sum()) == count.rising_steps
        assert count.sentence("test graphs") in shown.text
        assert count.sentence("test graphs") in (shown.out / "report.html").read_text()
    assert demo.energies(shown.out / "trained" / "gatedgcn", test) is None


def test_it_ends_with_the_guaranteed_model_whose_certificate_holds(shown: Shown) -> None:
    found = re.findall(r"^  (TANGO, .*)\n  (HOLDS|VIOLATED): ", shown.text, re.MULTILINE)
    assert [name for name, _ in found] == ["TANGO, plain Euler", "TANGO, guaranteed"]
    assert found[-1][1] == "HOLDS"


def test_all_models_have_about_as_many_parameters_and_edges_within_reach() -> None:
    data = load("gpp/eccentricity", graphs=22)
    sizes = []
    for config in demo.MODELS.values():
        model = make_model(config.kind, config.hidden_channels, config.options, data)
        sizes.append(sum(weight.numel() for weight in model.parameters()))
    assert max(sizes) < 1.02 * min(sizes)
    backbone, *flows = demo.MODELS.values()
    for tango in flows:
        assert tango.options["num_layers"] == 1
        assert backbone.options["num_layers"] == 2 * tango.options["num_steps"] == 10


def test_the_verdict_compares_squared_errors() -> None:
    models = [_trained(name, test) for name, test in (("A", 1.0), ("B", 0.4), ("C", 0.5))]
    assert demo.verdict(*models) == "The squared error of C is 0.32 times that of A, and 1.26 times that of B."


def _trained(name: str, test: float) -> demo.Trained:
    fields: dict[str, Any] = {field.name: None for field in dataclasses.fields(Record)}
    return demo.Trained(name, Path(), Record(**(fields | {"test": test})), {}, [], [])


def test_the_error_of_a_constant_is_the_metric_of_it() -> None:
    data = load("gpp/eccentricity", graphs=22)
    metric = MeanError("log10_mse", "mse_by_graph")
    for i in range(len(data.test)):
        metric.update(judged(torch.full_like(data.test[i].y, 5.0), data.test[i]))
    assert math.isclose(demo.constant_error(5.0, data.test), float(metric.compute()), rel_tol=1e-9)


def test_text_on_the_page_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    figure = Figure("<b>", tmp_path / "a.png", "a < b & c")
    text = page("<i>", ["<u>"], [["<s>"]], [figure], {"<q>": "<p>"})
    body = text.partition("<body>")[2]
    assert "a &lt; b &amp; c" in body
    assert not re.search("<[biusq]>|<pre><p>", body)
