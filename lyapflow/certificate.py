"""A certificate: what was measured of a field's energy, to read, to save and to draw."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from solvers import Status
from solvers.typing import PerSystem, PerSystemBool, PerSystemInt

from .binomial import clopper_pearson

_FORMAT = 1
_ROWS_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Sampled:
    """What was seen at sampled states.

    Attributes:
        states: How many states of every system were sampled.
        climbing: At how many of them the field raises the energy, `[S]`.
        stepping: From how many of them one step raises it, `[S]`; None for methods that choose their steps.
        worst_rate: The largest dV/dt seen, `[S]`.
        confidence: Of the bounds.

    >>> import torch
    >>> from lyapflow import Sampled
    >>> seen = Sampled(100, torch.tensor([0, 2]), None, torch.tensor([-1.0, 0.5]), 0.95)
    >>> print(seen.sentence("the energy grows at", seen.climbing))
    sampled: the energy grows at 2 of 200 states; between 0.12% and 3.57% of such states, with 95% confidence
    """

    states: int
    climbing: PerSystemInt
    stepping: PerSystemInt | None
    worst_rate: Tensor
    confidence: float

    def bound(self, counts: Tensor) -> tuple[int, int, float, float]:
        """Violations, states, and the Clopper-Pearson interval of their share, over all systems."""
        hits, trials = int(counts.sum()), self.states * len(counts)
        return hits, trials, *clopper_pearson(hits, trials, self.confidence)

    def sentence(self, what: str, counts: Tensor) -> str:
        hits, trials, low, high = self.bound(counts)
        sure = f"{self.confidence:.0%} confidence"
        share = f"at most {high:.2%}" if hits == 0 else f"between {low:.2%} and {high:.2%}"
        return f"sampled: {what} {hits} of {trials} states; {share} of such states, with {sure}"


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What :func:`certify` found. Everything but the settings is per system, `[S]`.

    Attributes:
        field: The name of the field.
        method: The name of the method.
        dissipative: Whether the method promises never to raise the energy.
        dtype: The type of the state.
        step_size: Of methods of a fixed step size, else the first step or None.
        time: How long the field was followed.
        seed: Of the sampled states.
        times: `[T, S]`, of the steps.
        energy: `[T, S]`, at those times.
        status: How the integration ended.
        increase: The largest rise of the energy in a step, 0 if it never rose.
        risen: Whether it rose by more than rounding.
        rate: The largest dV/dt at the states on the way.
        climbs: Whether it was above rounding at one of them.
        mismatch: The largest difference of dV/dt and `-alpha |g|^2` on the way, relative to the largest term; None for
            a field that does not show its parts.
        orthogonality: The largest `|<T, g>| / (|T| |g|)` on the way; None likewise.
        largest_step: The largest step that does not raise the energy, by bisection, from states on the way; infinity if
            none did up to a million times the step size.
        sampled: What was seen at sampled states.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic, certify
    >>> certificate = certify(LyapunovField(Quadratic([4.0])), torch.ones(1, 1), steps=3, step_size=0.6, samples=4)
    >>> certificate.holds, float(certificate.increase)  # Euler's steps may be 0.5 at the most here
    (False, 7.37...)
    """

    field: str
    method: str
    dissipative: bool
    dtype: str
    step_size: float | None
    time: float
    seed: int
    times: Tensor
    energy: Tensor
    status: PerSystemInt
    increase: PerSystem
    risen: PerSystemBool
    rate: PerSystem
    climbs: PerSystemBool
    mismatch: PerSystem | None
    orthogonality: PerSystem | None
    largest_step: PerSystem
    sampled: Sampled
    plane: Any = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def holds(self) -> bool:
        """Whether the energy grew nowhere: in no step that was taken, and along the field at no state looked at.

        Single steps from sampled states are reported, but are not part of it: with them it would depend on how far
        from the way the samples lie.
        """
        return not bool(self.risen.any() | self.climbs.any() | (self.sampled.climbing > 0).any() | self._failed.any())

    @property
    def _failed(self) -> Tensor:
        return torch.tensor([Status(code).failed for code in self.status.tolist()])

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """A table, as its header and its rows, one for each system."""
        header = ["#", "V start", "V end", "rise", "dV/dt", "step", "climbs", "status"]
        if self.orthogonality is not None:
            header[5:5] = ["off", "<T,g>"]
        table = []
        for s in range(self.energy.shape[1]):
            row = [
                str(s),
                f"{float(self.energy[0, s]):.3g}",
                f"{float(self.energy[-1, s]):.3g}",
                f"{float(self.increase[s]):.1e}" + ("!" if bool(self.risen[s]) else ""),
                f"{float(self.rate[s]):.1e}" + ("!" if bool(self.climbs[s]) else ""),
                f"{float(self.largest_step[s]):.3g}",
                f"{int(self.sampled.climbing[s])}/{self.sampled.states}",
                Status(int(self.status[s])).name,
            ]
            if self.orthogonality is not None and self.mismatch is not None:
                row[5:5] = [f"{float(self.mismatch[s]):.0e}", f"{float(self.orthogonality[s]):.0e}"]
            table.append(row)
        return header, table

    def legend(self) -> str:
        """What the columns of the table are."""
        known = {
            "rise": "largest rise of V in a step",
            "dV/dt": "largest on the way",
            "off": "dV/dt against -alpha |g|^2, relative",
            "<T,g>": "over |T| |g|",
            "step": "largest that does not raise V",
            "climbs": "sampled states at which V grows along the field",
            "!": "beyond rounding",
        }
        header = [*self.rows()[0], "!"]
        return "; ".join(f"{name}: {text}" for name, text in known.items() if name in header)

    def sentences(self) -> list[str]:
        """What was found, in words."""
        count = self.energy.shape[1]
        step = f", step {self.step_size:.4g}" if self.step_size is not None else ""
        lines = [f"{self.field}, {count} systems ({self.dtype}), {self.method}{step}, time {self.time:.4g}"]
        steps = len(self.energy) - 1
        rose = int(self.risen.sum())
        lines.append(
            f"on the way: the energy rose in {rose} of {count} systems, in {steps} steps or fewer each"
            if rose
            else f"on the way: the energy of no system rose, in {steps} steps or fewer each"
        )
        lines.append(self.sampled.sentence("the energy grows along the field at", self.sampled.climbing))
        if self.sampled.stepping is not None:
            lines.append(self.sampled.sentence("one step raises the energy from", self.sampled.stepping))
        verdict = "no violation was seen" if self.holds else "VIOLATED"
        lines.append(f"{verdict}. This is sampled evidence, not a proof.")
        return lines

    def __str__(self) -> str:
        header, rows = self.rows()
        shown = [header, *rows[:_ROWS_SHOWN]]
        widths = [max(len(row[i]) for row in shown) for i in range(len(header))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]
        if len(rows) > _ROWS_SHOWN:
            lines.append(f"... and {len(rows) - _ROWS_SHOWN} more systems")
        first, *rest = self.sentences()
        return "\n".join([first, *lines, f"({self.legend()})", *rest])

    def save(self, path: str | Path) -> Path:
        """Write it as JSON, so that :meth:`load` gets it back."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Infinity has no place in JSON's numbers; it is written as a string there.
        path.write_text(json.dumps({"format": _FORMAT, "sampled evidence": True, **_to_json(self)}, indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read what :meth:`save` wrote; all of it but the picture of the plane, which needs the field."""
        read = json.loads(Path(path).read_text())
        if read.get("format") != _FORMAT:
            raise ValueError(f"{path} is not a certificate of format {_FORMAT}")
        return _from_json(cls, read)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the energy over time and, for states in the plane, the landscape with the field's parts.

        Returns the matplotlib figure, and writes it to `path` where given. Needs `lyapflow[plot]`.
        """
        from .plots import draw_certificate

        return draw_certificate(self, None if path is None else Path(path))


_DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "bool": torch.bool}


def _to_json(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        values = thing.detach().cpu()
        flat = [x if x == x and abs(x) != float("inf") else str(x) for x in values.reshape(-1).tolist()]
        return {"shape": list(values.shape), "dtype": str(values.dtype).removeprefix("torch."), "values": flat}
    if dataclasses.is_dataclass(thing):
        fields = [field.name for field in dataclasses.fields(thing) if field.name != "plane"]
        return {name: _to_json(getattr(thing, name)) for name in fields}
    return thing


def _from_json(kind: Any, read: dict[str, Any]) -> Any:
    def restore(name: str, value: Any) -> Any:
        if isinstance(value, dict) and "values" in value:
            flat = [float(x) if isinstance(x, str) else x for x in value["values"]]
            return torch.tensor(flat, dtype=_DTYPES[value["dtype"]]).reshape(value["shape"])
        return _from_json(Sampled, value) if name == "sampled" else value

    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: restore(name, value) for name, value in read.items() if name in names})
