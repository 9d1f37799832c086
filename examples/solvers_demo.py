"""The solvers at work: a short account on the terminal, and figures.

Run as one of::

    python -m examples.solvers_demo                                            # figures go to demo/
    python -m examples.solvers_demo --out DIR --no-plots
    python -m examples.solvers_demo --readme-image docs/images/descent.png
"""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from examples.terminal import find_figures, heading, say, table
from solvers import Adjoint, Checkpointed, Direct, Rows, Single, Solution, Status, methods, solve


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.solvers_demo", description="The solvers at work.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the figures (default: demo)")
    parser.add_argument("--no-plots", action="store_true", help="draw no figures")
    parser.add_argument("--readme-image", type=Path, metavar="PATH", help="draw the README's picture and nothing else")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other

    if options.readme_image is not None:
        figures = find_figures("solvers_figures")
        if figures is None:
            parser.error("--readme-image needs matplotlib")
        draw_readme_image(figures, options.readme_image)
        print(f"Wrote {options.readme_image}")
        return

    start = time.perf_counter()
    figures = None if options.no_plots else find_figures("solvers_figures")
    show_registry()
    files = [*show_energies(figures, options.out), *show_own_steps(figures, options.out)]
    show_failure()
    show_gradients()
    heading(f"Done in {time.perf_counter() - start:.0f} seconds")
    if files:
        say("The figures are in " + " and ".join(str(file) for file in files) + ".")
    elif options.no_plots:
        say("No figures, as asked for.")
    else:
        say("No figures: matplotlib is not installed. `make demo` installs it, as does `pip install matplotlib`.")


# -- 1. what there is -------------------------------------------------------------------------------------------------


def show_registry() -> None:
    registry = methods()
    dissipative = [name for name, method in registry.items() if method.dissipative]
    heading("1. The methods")
    say(
        f"{len(registry)} methods are known by name. {len(dissipative)} of them are dissipative: for a field that has "
        "an energy they never raise it, at any step size."
    )
    print(textwrap.indent(str(registry), "  ") + "\n")


# -- 2. energies that must not rise -----------------------------------------------------------------------------------


class SwirlingDescent:
    """Down Himmelblau's function, which has four minima, with a swirl along its level sets.

    `dy/dt = -alpha grad V(y) + beta J grad V(y)`, where J turns by 90 degrees; the swirl does no work, so the energy
    falls at the rate `alpha |grad V|^2`.
    """

    systems = Rows()

    def __init__(self, alpha: float = 1.0, beta: float = 3.0) -> None:
        self.alpha = alpha
        self.beta = beta
        self.energy_calls = 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return self.descent(y) + self.swirl(y)

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        self.energy_calls += 1
        a, b = self._residuals(y)
        return (a**2 + b**2) / 100

    def descent(self, y: Tensor) -> Tensor:
        return -self.alpha * self._gradient(y)

    def swirl(self, y: Tensor) -> Tensor:
        g1, g2 = self._gradient(y).unbind(-1)
        return self.beta * torch.stack([-g2, g1], dim=-1)

    def _residuals(self, y: Tensor) -> tuple[Tensor, Tensor]:
        y1, y2 = y.unbind(-1)
        return y1**2 + y2 - 11, y1 + y2**2 - 7

    def _gradient(self, y: Tensor) -> Tensor:
        y1, y2 = y.unbind(-1)
        a, b = self._residuals(y)
        return torch.stack([4 * y1 * a + 2 * b, 2 * a + 4 * y2 * b], dim=-1) / 100


STARTS = torch.tensor(
    [[-0.8, -0.4], [0.6, 0.2], [4.9, -3.4], [-4.6, -1.0], [-4.4, 4.4], [0.2, 4.6], [4.6, 3.4]], dtype=torch.float64
)
COMPARED = ("euler", "rk4", "armijo_euler", "relaxed_rk4", "discrete_gradient", "dopri5")


@dataclasses.dataclass(frozen=True)
class Descent:
    """What one method made of the swirling descent: the path of every system, and what it cost."""

    method: str
    solution: Solution[Tensor]
    energy_calls: int

    @property
    def largest_rise(self) -> float:
        rises = self.solution.energy.diff(dim=0)
        return float(rises[~rises.isnan()].max())

    def path(self, system: int) -> tuple[Tensor, Tensor, Tensor]:
        """Times `[T]`, states `[T, 2]` and energies `[T]` of one system."""
        ts = self.solution.ts
        ys = self.solution.ys
        assert isinstance(ys, Tensor)
        return ts if ts.ndim == 1 else ts[:, system], ys[:, system], self.solution.energy[:, system]


def descend(field: SwirlingDescent, method: str, dt: float) -> Descent:
    """Descend from all starts, in steps of `dt` or, by an adaptive method, in steps of its own choice."""
    before = field.energy_calls
    dt0 = None if methods()[method].adaptive else dt
    solution = solve(field, STARTS, 0.0, 15.0, method=method, dt0=dt0, saveat="steps", throw=False)
    return Descent(method, solution, field.energy_calls - before)


def show_energies(figures: ModuleType | None, out: Path) -> list[Path]:
    heading("2. Euler breaks, dissipative methods do not")
    field, dt = SwirlingDescent(), 0.7
    say(
        f"Down Himmelblau's function V with a swirl along its level sets, from {len(STARTS)} starts, each a system of "
        f"its own. The step {dt:g} is too large for Euler; dopri5 chooses its steps by its error estimate."
    )
    descents = [descend(field, name, dt) for name in COMPARED]
    rows = []
    for descent in descents:
        solution = descent.solution
        steps, evaluations = int(solution.stats["accepted"].max()), int(solution.stats["nfe"].max())
        final = float(solution.energy[-1].max())
        counts = f"{steps}", f"{evaluations}", f"{descent.energy_calls}"
        rows.append((descent.method, *counts, f"{descent.largest_rise:.1e}", f"{final:.1e}", outcome(solution)))
    table("lrrrrrl", ("method", "steps", "f", "V", "largest rise of V", "largest V at the end", "systems"), rows)
    say(
        "Steps and f, the evaluations of the field, are those of the system that needed most; V counts the "
        "evaluations of the energy, for all systems at once. The largest rise is over all steps and systems: zero or "
        "less means that V never rose. An error estimate keeps dopri5 near its path, but promises nothing about V."
    )
    if figures is None:
        return []
    return [figures.draw_descents(descents, field, STARTS, 4, out / "energy.png")]


# -- 3. each system its own step --------------------------------------------------------------------------------------


class Bursts:
    """Systems that follow cos(t), each of them stiff during a short burst at a time of its own.

    `peak` is the largest rate of each system, which is 1 between the bursts, and `when` the time of its burst; both
    `[S, 1]`.
    """

    def __init__(self, peak: Tensor, when: Tensor) -> None:
        self.peak = peak
        self.when = when
        self.calls = 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        rate = 1 + (self.peak - 1) * torch.exp(-(((t - self.when) / 0.2) ** 2))
        return -rate * (y - torch.cos(t))


def show_own_steps(figures: ModuleType | None, out: Path) -> list[Path]:
    heading("3. Each system its own step")
    count, end = 64, 20.0
    peak = torch.logspace(0, 3, count, dtype=torch.float64).unsqueeze(1)
    when = end * (torch.randperm(count).double().unsqueeze(1) + 0.5) / count
    y0 = torch.zeros_like(peak)
    say(
        f"{count} systems, dy/dt = -k(t) (y - cos t), each with a burst of stiffness at a time of its own; the peaks "
        f"of k range from {peak.min():g} to {peak.max():g}. By dopri5, first as {count} systems with Rows(), then as "
        "one with Single():"
    )
    fields = Bursts(peak, when), Bursts(peak, when)
    own = solve(fields[0], y0, 0.0, end, systems=Rows())
    shared = solve(fields[1], y0, 0.0, end, systems=Single(), progress=True)
    own_steps, shared_steps = own.stats["accepted"], int(shared.stats["accepted"])
    own_calls, shared_calls = (field.calls for field in fields)
    own_sum, shared_sum = int(own.stats["nfe"].sum()), count * int(shared.stats["nfe"])
    range_of_steps = f"{int(own_steps.min())} to {int(own_steps.max())}"
    rows = [
        ("accepted steps of a system", range_of_steps, f"{shared_steps}", ""),
        ("calls of the field, whole batch", f"{own_calls}", f"{shared_calls}", f"{shared_calls / own_calls:.1f}"),
        ("evaluations, summed over systems", f"{own_sum}", f"{shared_sum}", f"{shared_sum / own_sum:.1f}"),
    ]
    table("lrrr", ("", "Rows()", "Single()", "ratio"), rows)
    alone = end_state(solve(Bursts(peak[:1], when[:1]), y0[:1], 0.0, end))
    own_gap, shared_gap = (float((end_state(batch)[:1] - alone).abs()) for batch in (own, shared))
    say(
        f"Solved alone, the first system ends at a state that differs from the one in the batch by {own_gap:g} with "
        f"Rows(), where no system notices the others, and by {shared_gap:.1e} with Single()."
    )
    if figures is None:
        return []
    return [figures.draw_steps(peak.flatten(), own_steps, shared_steps, out / "steps.png")]


# -- 4. a failure, handled --------------------------------------------------------------------------------------------


def show_failure() -> None:
    heading("4. A failure, handled")
    outlet = torch.tensor([[0.2], [0.4], [1.0], [0.3]], dtype=torch.float64)
    level = torch.ones_like(outlet)

    def drain(t: Tensor, y: Tensor) -> Tensor:
        return -outlet * y.sqrt()

    say(
        "Four tanks drain by Torricelli's law, dy/dt = -c sqrt(y). One of them runs dry, at t = 2/c, and beyond that "
        "the root is NaN. With throw=False its system freezes and says why; the others go on to the end:"
    )
    solution = solve(drain, level, 0.0, 3.0, systems=Rows(), throw=False)
    reached = end_state(solution)
    exact = (1 - outlet * solution.t1.unsqueeze(1) / 2) ** 2
    rows = []
    for i in range(len(outlet)):
        error = float((reached[i] - exact[i]).abs())
        numbers = f"{float(outlet[i]):g}", f"{float(solution.t1[i]):.4f}", f"{float(reached[i]):.4f}"
        rows.append((f"{i}", *numbers, f"{error:.0e}", solution.status_of(i).name))
    table("lrrrrl", ("system", "c", "t reached", "level", "error", "status"), rows)
    say("With throw=True, the default, this is raised:")
    say(f"SolveError: {solution.error()}", indent=4)

    ended = solve(drain, level, 0.0, 3.0, systems=Rows(), event=lambda t, y: y - 1e-6)
    dry = int((ended.status == Status.EVENT).nonzero())
    say(
        f"An event tells the solver that a dry tank is no failure: with event=lambda t, y: y - 1e-6, system {dry} is "
        f"{ended.status_of(dry).summary} at t = {float(ended.t1[dry]):.4f}, and nothing is raised."
    )


# -- 5. gradients -----------------------------------------------------------------------------------------------------


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive among those made inside, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self._known:
                self._meet(tensor.untyped_storage())
        return result

    def _meet(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self.now -= size


@dataclasses.dataclass(frozen=True)
class Backward:
    """One forward and backward pass: the gradient of all parameters, and what it took."""

    gradient: Tensor
    kept: int  # bytes between the passes
    peak: int  # bytes
    calls: int  # of the field, in both passes


def differentiate(network: torch.nn.Module, y0: Tensor, steps: int, adjoint: Adjoint) -> Backward:
    calls = 0

    def field(t: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return network(y) - y

    with LiveBytes() as memory:
        solution = solve(field, y0, 0.0, 10.0, method="euler", dt0=10.0 / steps, adjoint=adjoint)
        loss = end_state(solution).pow(2).mean()
        kept = memory.now
        gradients = torch.autograd.grad(loss, list(network.parameters()))
    return Backward(torch.cat([g.flatten() for g in gradients]), kept, memory.peak, calls)


def show_gradients() -> None:
    heading("5. Gradients in little memory")
    steps = 1000
    network = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32))
    y0 = torch.randn(128, 32)
    say(
        f"The gradient of a small network's parameters through {steps} Euler steps. Direct() keeps every step, "
        "Checkpointed() about the square root of their number and computes the others again:"
    )
    direct, checkpointed = (differentiate(network, y0, steps, adjoint) for adjoint in (Direct(), Checkpointed()))
    rows = []
    for name, kind in (("kept for the backward pass, MB", "kept"), ("peak, MB", "peak")):
        much, little = getattr(direct, kind), getattr(checkpointed, kind)
        rows.append((name, f"{much / 1e6:.2f}", f"{little / 1e6:.2f}", f"{much / little:.1f}"))
    ratio = direct.calls / checkpointed.calls
    rows.append(("calls of the field, both passes", f"{direct.calls}", f"{checkpointed.calls}", f"{ratio:.1f}"))
    table("lrrr", ("", "Direct()", "Checkpointed()", "ratio"), rows)
    gap = float((direct.gradient - checkpointed.gradient).abs().max())
    say(
        f"The two gradients differ by at most {gap:.1e}; the largest entry is {float(direct.gradient.abs().max()):.1e}."
    )


# -- the README's picture ---------------------------------------------------------------------------------------------


def draw_readme_image(figures: ModuleType, path: Path) -> None:
    """The parts of a field on the level sets of its energy, and the energy over time at too large a step."""
    field = SwirlingDescent(beta=1.5)
    side = torch.linspace(-6, 6, 7, dtype=torch.float64)
    square = torch.cartesian_prod(side, side)
    border = square[(square.abs() == 6).any(dim=1)]
    flow = solve(field, torch.cat([border, figures.ARROWS_AT]), 0.0, 12.0, saveat=torch.linspace(0, 12, 1201))
    descents = [descend(field, name, 1.4) for name in COMPARED if not methods()[name].adaptive]
    figures.draw_readme_image(descents, field, flow.ys, 5, path)


def end_state(solution: Solution[Tensor]) -> Tensor:
    """The state at the end, which here is one tensor."""
    assert isinstance(solution.y1, Tensor)
    return solution.y1


# -- on the terminal --------------------------------------------------------------------------------------------------


def outcome(solution: Solution[Tensor]) -> str:
    """How many systems ended how."""
    counts = Counter(Status(code).name for code in solution.status.tolist())
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), reverse=True))


if __name__ == "__main__":
    main()
