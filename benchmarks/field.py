"""A `LyapunovField` against the same formula written inline.

Claim: evaluating a `LyapunovField` takes at most 1.10 times as long as the same formula written out with
`torch.autograd.grad`: the energy's gradient, the direction projected twice at the scale of 1 with a guard for a
gradient of zero, and the sum. Beside it, the formula written without care: one projection, no guard, no scale.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from report import Claim, largest, main, print_table
from timing import interleave
from torch import Tensor, nn

from lyapflow import LyapunovField, MLPEnergy, MLPTangent

SIZES = {"32 x 8": (32, 8, 64), "1024 x 64": (1024, 64, 128)}
FIELD, INLINE, CARELESS = "LyapunovField", "same formula inline", "one projection, no guard"
REPEATS = 20

Evaluate = Callable[[Tensor], Tensor]


def gradient_of(energy: nn.Module, h: Tensor) -> Tensor:
    record = torch.is_grad_enabled()
    with torch.enable_grad():
        point = h if h.requires_grad else h.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(energy(point).sum(), point, create_graph=record)
    return gradient


def inline(energy: nn.Module, tangent: nn.Module, alpha: float, beta: float) -> Evaluate:
    def evaluate(h: Tensor) -> Tensor:
        g = gradient_of(energy, h)
        direction = tangent(h)
        scale = g.detach().flatten(1).abs().amax(1)
        scale = torch.where(scale < torch.finfo(g.dtype).tiny, float("inf"), scale)
        unit = g / scale[:, None]
        square = (unit * unit).sum(1).clamp(min=1)
        for _ in range(2):
            share = (direction * unit).sum(1) / square
            direction = torch.addcmul(direction, share[:, None], unit, value=-1)
        return torch.add(g * -alpha, direction, alpha=beta)

    return evaluate


def careless(energy: nn.Module, tangent: nn.Module, alpha: float, beta: float) -> Evaluate:
    def evaluate(h: Tensor) -> Tensor:
        g = gradient_of(energy, h)
        direction = tangent(h)
        share = (direction * g).sum(1, keepdim=True) / (g * g).sum(1, keepdim=True)
        return -alpha * g + beta * (direction - share * g)

    return evaluate


def passes(parameters: list[Tensor], h: Tensor) -> dict[str, Callable[[Evaluate], Callable[[], object]]]:
    def forward(evaluate: Evaluate) -> Callable[[], object]:
        def timed() -> None:
            with torch.no_grad():
                for _ in range(REPEATS):
                    evaluate(h)

        return timed

    def forward_and_backward(evaluate: Evaluate) -> Callable[[], object]:
        def timed() -> None:
            for _ in range(REPEATS):
                torch.autograd.grad(evaluate(h).square().sum(), parameters, allow_unused=True)

        return timed

    return {"forward": forward, "forward+backward": forward_and_backward}


def measure(rounds: int) -> list[Claim]:
    against_inline: dict[str, float] = {}
    against_careless: dict[str, float] = {}
    rows = []
    for size, (batch, channels, hidden) in SIZES.items():
        torch.manual_seed(0)
        energy, tangent = MLPEnergy(channels, (hidden, hidden)), MLPTangent(channels, (hidden, hidden))
        h, alpha, beta = torch.randn(batch, channels), 0.5, 2.0
        field = LyapunovField(energy, tangent, alpha, beta)
        ways: dict[str, Evaluate] = {
            FIELD: lambda x, field=field: field(0.0, x),
            INLINE: inline(energy, tangent, alpha, beta),
            CARELESS: careless(energy, tangent, alpha, beta),
        }
        assert torch.equal(ways[FIELD](h), ways[INLINE](h))
        for name, prepare in passes(list(field.parameters()), h).items():
            case = f"{size}, {name}"
            timings = interleave({way: prepare(evaluate) for way, evaluate in ways.items()}, rounds)
            against_inline[case] = timings.ratio(FIELD, INLINE)
            against_careless[case] = timings.ratio(FIELD, CARELESS)
            each = [f"{1e6 * timings.median(way) / REPEATS:.0f}" for way in ways]
            rows.append([case, *each, f"{against_inline[case]:.2f}x", f"{against_careless[case]:.2f}x"])
    header = ("one evaluation, microseconds", *(FIELD, INLINE, CARELESS), "field/same", "field/careless")
    print_table("A Lyapunov field and its formula", header, rows)
    return [
        largest("LyapunovField's time in units of the same formula's", against_inline, at_most=1.1),
        largest("in units of the formula without care", against_careless),
    ]


if __name__ == "__main__":
    main(__doc__, measure)
