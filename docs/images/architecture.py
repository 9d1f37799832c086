"""Draws `architecture-*.svg` and `training-step-*.svg`; a test compares what they show with the code.

Run as `python docs/images/architecture.py`.
"""

from __future__ import annotations

from pathlib import Path

# From top to bottom: what stands in a row imports from rows below it only. A test reads the imports of every module.
ROWS: list[tuple[str, list[str]]] = [
    ("scripts", ["examples", "experiments", "benchmarks"]),
    ("lyapflow_graph", ["sweeping"]),
    ("lyapflow_graph", ["training"]),
    ("lyapflow_graph", ["data", "models", "dynamics", "diagnostics", "plots"]),
    ("lyapflow_graph", ["tango", "metrics"]),
    ("lyapflow_graph", ["tango_parts", "dirichlet", "encoders", "metric_states"]),
    ("lyapflow_graph", ["backbones", "losses"]),
    ("lyapflow_graph", ["conv"]),
    ("lyapflow_graph", ["batch"]),
    ("lyapflow_graph", ["kernels"]),
    ("lyapflow", ["cli"]),
    ("lyapflow", ["commands", "testing"]),
    ("lyapflow", ["demo", "certify", "newton", "coefficients"]),
    ("lyapflow", ["inspection", "certificate", "tangents", "energies", "symbolic"]),
    ("lyapflow", ["field", "registry", "flow", "descent"]),
    ("lyapflow", ["base", "algebra", "projection", "linear", "layers", "plots", "importing", "binomial"]),
    ("solvers", ["solvers"]),
]
# In the order in which they are first called when a run begins; a test runs one and looks.
STEPS: list[tuple[str, str, str]] = [
    ("lyapflow_graph.training.run", "train", "checks the configuration, makes model and loaders"),
    ("lyapflow_graph.data.loader", "BatchLoader.__iter__", "cuts a batch out of flat tensors"),
    ("lyapflow_graph.training.module", "GraphTask.training_step", "one batch"),
    ("lyapflow_graph.models", "GraphModel.encode", "features and positional encodings to hidden states"),
    ("lyapflow_graph.conv", "DynamicsConv.forward", "small graphs and Euler: all steps in one kernel; else"),
    ("lyapflow_graph.conv", "DynamicsConv.solve", "binds the layer to the graphs: a field"),
    ("solvers.term", "Term.__init__", "the field as a solver sees it; steps are taken in solvers"),
    ("lyapflow.base", "Slope.__init__", "energy and gradient, by kernels or by autograd"),
    ("lyapflow_graph.tango_parts", "GraphTangent.forward", "the learned direction"),
    ("lyapflow_graph.tango_parts", "PooledCoefficient.forward", "alpha and beta; then projection and velocity"),
    ("lyapflow_graph.models", "GraphModel.decode", "hidden states to predictions"),
    ("lyapflow_graph.losses", "Loss.sums", "the loss, whose gradient flows back through every step"),
    ("lyapflow_graph.training.callback", "RunCallback.on_train_epoch_end", "after all batches and the validation"),
    ("lyapflow_graph.training.checkpoint", "save_checkpoint", "so that a killed run goes on"),
    ("lyapflow_graph.training.record", "Record.save", "what reports and tables are made of"),
]
COLOURS = {
    "light": {"text": "#1f2328", "line": "#8c959f", "scripts": "#eceff2", "lyapflow_graph": "#ffe7cc",
              "lyapflow": "#d9f0e1", "solvers": "#dbe9fb"},
    "dark": {"text": "#e6edf3", "line": "#6e7681", "scripts": "#30363d", "lyapflow_graph": "#5c3a14",
             "lyapflow": "#1d4a30", "solvers": "#1c3d66"},
}  # fmt: skip
WIDTH = 860


def packages(theme: str) -> str:
    """The rows of modules, each in the colour of its package."""
    colour, parts, y = COLOURS[theme], [], 10
    for package, names in ROWS:
        width = (WIDTH - 130) / len(names)
        parts.append(_text(10, y + 20, "" if package == "solvers" else package, colour["text"], 13))
        for i, name in enumerate(names):
            parts.append(_box(120 + i * width, y, width - 8, 30, colour[package], colour["line"]))
            parts.append(_text(120 + i * width + (width - 8) / 2, y + 20, name, colour["text"], 13, "middle"))
        y += 38
    return _svg(parts, y)


def training_step(theme: str) -> str:
    """The functions that a batch passes, one below the other."""
    colour, parts, y = COLOURS[theme], [], 10
    for module, name, about in STEPS:
        package = module.split(".")[0]
        parts.append(_box(10, y, 410, 30, colour[package], colour["line"]))
        parts.append(_text(22, y + 20, f"{module.removeprefix('lyapflow_graph.')}: {name}", colour["text"], 13))
        parts.append(_text(434, y + 20, about, colour["text"], 13))
        y += 38
    return _svg(parts, y)


def pictures() -> dict[str, str]:
    """All pictures by the names of their files."""
    made = {f"architecture-{theme}.svg": packages(theme) for theme in COLOURS}
    return made | {f"training-step-{theme}.svg": training_step(theme) for theme in COLOURS}


def _box(x: float, y: float, width: float, height: float, fill: str, line: str) -> str:
    place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"'
    return f'<rect {place} rx="5" fill="{fill}" stroke="{line}"/>'


def _text(x: float, y: float, text: str, fill: str, size: int, anchor: str = "start") -> str:
    style = f'font-family="sans-serif" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y}" {style}>{text}</text>'


def _svg(parts: list[str], height: int) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join([head, *parts, "</svg>", ""])


if __name__ == "__main__":
    for file, text in pictures().items():
        Path(__file__).with_name(file).write_text(text, encoding="utf-8")
