"""A signal that has to cross a bottleneck: gradient flow against TANGO on a barbell graph.

Two cliques are joined by a path. One node holds a signal; fifty steps later, how much of it is beyond the bridge? Both
flows lower the same Dirichlet energy by the same forward Euler steps. TANGO adds a motion orthogonal to the energy's
gradient, by a small message-passing network that is trained here, for a few seconds and for this graph alone, to
spread the signal. Neither flow makes or destroys signal, and in either it travels one edge a step.

Run as one of::

    python -m examples.barbell                     # the figures go to demo/
    python -m examples.barbell --quick --out DIR
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.barbell_flows import BarbellResult, Way, barbell
from examples.terminal import heading, say, table
from lyapflow_graph.diagnostics import (
    InfluenceOverDistance,
    effective_resistance,
    influence_over_distance,
    spectral_gap,
)

SIZES = (0.5, 1.0, 1.5, 1.9)  # of a step, relative to the inverse of the largest eigenvalue; from 2 on the energy rises


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.barbell", description="A signal crosses a bottleneck.")
    parser.add_argument("--quick", action="store_true", help="train less, and at one step size only")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the figures (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="of the network's weights (default: 0)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other

    start = time.perf_counter()
    train_steps = 20 if options.quick else 40
    result = barbell(train_steps=train_steps, seed=options.seed)
    show_graph(result)
    show_flows(result, train_steps)
    show_step_sizes(result, 0 if options.quick else train_steps, options.seed)
    influences = [influence_of(way, result) for way in (result.gradient_flow, result.tango)]
    show_influences(*influences)
    heading(f"Done in {time.perf_counter() - start:.0f} seconds")
    if importlib.util.find_spec("matplotlib") is None:
        say("No figures: matplotlib is not installed.")
    else:
        result.plot(options.out / "barbell.png")
        draw_courses(result, influences, options.out / "barbell_courses.png")
        say(f"The figures are {options.out / 'barbell.png'} and {options.out / 'barbell_courses.png'}.")


def show_graph(result: BarbellResult) -> None:
    heading("1. The bottleneck")
    graphs, last = result.graphs, result.graphs.num_nodes - 1
    pairs = torch.tensor([[0, 0], [1, last]])
    inside, across = effective_resistance(graphs, pairs=pairs).tolist()
    say(
        f"{graphs.num_nodes} nodes, {graphs.num_edges // 2} edges. The spectral gap is "
        f"{float(spectral_gap(graphs)):.4f}. The effective resistance between two nodes of a clique is {inside:.2f}, "
        f"between nodes of different ones {across:.2f}."
    )


def show_flows(result: BarbellResult, train_steps: int) -> None:
    heading("2. Two flows of one energy")
    steps = len(result.tango.energy) - 1
    say(
        f"{steps} Euler steps of {result.step_size:.4f}, the inverse of the Laplacian's largest eigenvalue; TANGO "
        f"after {train_steps} training steps. The uniform state would have {result.uniform:.1%} beyond the bridge. "
        "Where the rise is negative, the energy fell in every step:"
    )
    rows = [
        (
            name,
            f"{way.crossed:.2%}",
            f"{way.energy[0]:.3f}",
            f"{way.energy[-1]:.2e}",
            f"{way.largest_rise:.1e}",
            f"{way.seconds:.1f}",
        )
        for name, way in (("gradient flow", result.gradient_flow), ("TANGO", result.tango))
    ]
    table("lrrrrr", ("flow", "crossed", "energy at start", "at end", "largest rise", "seconds"), rows)


def show_step_sizes(known: BarbellResult, train_steps: int, seed: int) -> None:
    """How much crosses depends on the step size, so gradient flow is shown at its best as well."""
    heading("3. Other step sizes")
    say(
        "As many steps of other sizes, relative to the inverse of the largest eigenvalue; from 2 on the energy would "
        "rise. Gradient flow gains from larger ones, since it is followed for longer; TANGO is "
        + ("trained anew for each:" if train_steps else "not trained for them with --quick:")
    )
    rows = []
    for size in SIZES:
        result = known if size == 1 else barbell(step=size, train_steps=train_steps, seed=seed)
        tango = f"{result.tango.crossed:.2%}" if result.losses else "-"
        rows.append((f"{size:.1f}", f"{result.gradient_flow.crossed:.2%}", tango))
    table("rrr", ("step size", "gradient flow", "TANGO"), rows)


def influence_of(way: Way, result: BarbellResult) -> InfluenceOverDistance:
    """Of the signal at the start on the state at the end: from the node it starts at to all others."""
    source = torch.tensor([result.source])
    return influence_over_distance(way.flow, way.states[0][:, None], result.graphs, sources=source)


def show_influences(descent: InfluenceOverDistance, tango: InfluenceOverDistance) -> None:
    heading("4. Influence over distance")
    say("How much the end state changes with the signal at the start, by the distance from there in edges:")
    pairs = zip(descent.mean[0].tolist(), tango.mean[0].tolist(), strict=True)
    rows = [(f"{k}", f"{a:.1e}", f"{b:.1e}", f"{b / a:.1f}") for k, (a, b) in enumerate(pairs)]
    table("rrrr", ("distance", "gradient flow", "TANGO", "ratio"), rows)


def draw_courses(result: BarbellResult, influences: Sequence[InfluenceOverDistance], path: Path) -> Path:
    """The energies over steps, and the influences over distance."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from lyapflow.plots import STYLE
    from lyapflow_graph.plots import draw_energy, draw_influence

    labels = ("gradient flow", "TANGO")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_energy(left, torch.stack([result.gradient_flow.energy, result.tango.energy], dim=1), labels)
        left.set(ylabel="Dirichlet energy")
        draw_influence(right, torch.cat([found.mean for found in influences]), labels)
        right.set(xlabel="distance from the source of the signal (edges)")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)
    return path


if __name__ == "__main__":
    main()
