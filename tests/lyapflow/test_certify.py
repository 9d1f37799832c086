"""Certificates: they find what is wrong, give known figures where there are some, and come back from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import scipy.stats
import torch
from hypothesis import given
from torch import Tensor

from lyapflow import (
    Certificate,
    DescentShare,
    Flow,
    Himmelblau,
    LyapunovField,
    MLPEnergy,
    MLPTangent,
    Quadratic,
    Rows,
    Segments,
    certify,
)
from lyapflow.binomial import clopper_pearson
from lyapflow.certify import _rise, _worst
from solvers import Status, methods

FIXED_DISSIPATIVE = [name for name, method in methods().items() if method.dissipative and not method.adaptive]


# -- known figures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_step_of_euler_is_two_over_the_eigenvalue(dtype: torch.dtype) -> None:
    """From an eigenvector of a quadratic, Euler descends iff dt <= 2 / eigenvalue; DETEST C3's is 0.510336."""
    A = torch.diag(torch.full((10,), 2.0)) - torch.diag(torch.ones(9), 1) - torch.diag(torch.ones(9), -1)
    values, vectors = torch.linalg.eigh(A.double())
    h = vectors.T.to(dtype)
    certificate = certify(LyapunovField(Quadratic(A.to(dtype))), h[-1:], steps=2, step_size=0.1, samples=4)
    assert float(certificate.largest_step[0]) == pytest.approx(0.510336, rel=1e-5 if dtype == torch.float64 else 1e-3)
    each = certify(LyapunovField(Quadratic(A.to(dtype))), h, steps=1, step_size=1e-3, samples=2)
    assert torch.allclose(each.largest_step, 2 / values, rtol=1e-2)


def test_steps_too_large_are_found() -> None:
    field = LyapunovField(Quadratic([1.0, 10.0]))
    h = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    good = certify(field, h, steps=5, step_size=0.19, samples=32)
    assert good.holds
    assert not good.risen.any()
    bad = certify(field, h, steps=5, step_size=0.21, samples=32)
    assert not bad.holds
    assert bad.risen.tolist() == [True, False]  # the second system has nothing in the steep direction
    assert float(bad.increase[0]) > 0
    assert bool((bad.sampled.climbing == 0).all())  # the field itself is fine
    assert bad.sampled.stepping is not None
    assert bool((bad.sampled.stepping > 0).any())
    assert "VIOLATED" in str(bad)
    assert "the energy rose in 1 of 2 systems" in str(bad)


@pytest.mark.parametrize("name", FIXED_DISSIPATIVE)
def test_dissipative_methods_hold_at_any_step(name: str) -> None:
    field = LyapunovField(Quadratic([1.0, 10.0]), lambda h: h.roll(1, -1))
    certificate = certify(field, torch.randn(2, 2), steps=2, step_size=5.0, method=name, samples=4)
    assert certificate.holds
    assert certificate.dissipative
    assert torch.isinf(certificate.largest_step).all()


def test_a_field_that_climbs_is_found() -> None:
    class Climbs:
        """Only beyond a radius of 3, where the samples lie but not the way."""

        systems = Rows()

        def energy(self, t: Any, h: Tensor) -> Tensor:
            return h.square().sum(-1) / 2

        def __call__(self, t: Any, h: Tensor) -> Tensor:
            return torch.where(h.norm(dim=-1, keepdim=True) > 3, h, -h)

    field = Climbs()
    certificate = certify(field, 0.5 * torch.ones(1, 2), steps=5, step_size=0.1, samples=400, sampler=_within(10.0))
    assert not certificate.climbs.any()
    share = int(certificate.sampled.climbing) / 400
    hits, trials, low, high = certificate.sampled.bound(certificate.sampled.climbing)
    assert (hits, trials) == (int(certificate.sampled.climbing), 400)
    outside = 1 - torch.pi * 9 / 400  # of the square
    assert low <= outside <= high
    assert abs(share - outside) < 0.05
    assert not certificate.holds
    assert certificate.orthogonality is None
    inside = certify(field, 0.5 * torch.ones(1, 2), steps=5, step_size=0.1, samples=64, sampler=_within(2.0))
    assert inside.holds


def _within(side: float) -> Any:
    return lambda generator: (2 * torch.rand(1, 2, generator=generator) - 1) * side


def test_projection_left_out_is_found() -> None:
    h = torch.randn(4, 2)
    parts = MLPEnergy(2), MLPTangent(2)
    good = certify(LyapunovField(*parts, beta=5.0), h, 1.0, method="rk4", steps=20, samples=64)
    bad = certify(LyapunovField(*parts, beta=5.0, projection="none"), h, 1.0, method="rk4", steps=20, samples=64)
    assert good.holds
    assert not bad.holds
    assert (bad.sampled.climbing > 0).any()
    assert good.orthogonality is not None
    assert bad.orthogonality is not None
    assert good.mismatch is not None
    assert bad.mismatch is not None
    assert good.orthogonality.max() < 1e-6 < 1e-3 < bad.orthogonality.max()
    assert good.mismatch.max() < 1e-5 < 1e-3 < bad.mismatch.max()


def test_a_way_that_is_lost_is_a_violation() -> None:
    class Explodes:
        systems = Rows()

        def energy(self, t: Any, h: Tensor) -> Tensor:
            return -h.sum(-1)

        def __call__(self, t: Any, h: Tensor) -> Tensor:
            return h**2

    certificate = certify(Explodes(), torch.tensor([[5.0], [0.01]]), 1.0, steps=10, samples=4)
    assert not certificate.holds
    assert [Status(code).name for code in certificate.status.tolist()] == ["NON_FINITE", "SUCCESS"]


# -- the way there ----------------------------------------------------------------------------------------------------


def test_adaptive_methods_and_flows() -> None:
    field = LyapunovField(Himmelblau(), MLPTangent(2), alpha=0.1)
    h = torch.rand(3, 2)
    certificate = certify(field, h, 0.5, method="dopri5", samples=8)
    assert certificate.step_size is None
    assert certificate.sampled.stepping is None
    assert certificate.times.shape == certificate.energy.shape
    flow = Flow(field, "midpoint", steps=4, step_size=0.01)
    by_flow = certify(flow, h, samples=8)
    assert (by_flow.method, by_flow.step_size, len(by_flow.energy)) == ("midpoint", 0.01, 5)
    with pytest.raises(ValueError, match="steps comes with the Flow"):
        certify(flow, h, steps=3)


def test_ragged_systems() -> None:
    division = Segments(torch.tensor([0, 0, 1, 3]), 4)
    field = LyapunovField(MLPEnergy(2), MLPTangent(2), DescentShare(), systems=division)
    certificate = certify(field, torch.randn(4, 2), steps=3, step_size=0.01, samples=8)
    assert certificate.energy.shape == (4, 4)
    assert certificate.holds


def test_the_same_seed_gives_the_same_certificate() -> None:
    field = LyapunovField(MLPEnergy(2), MLPTangent(2), projection="none", beta=3.0)
    h = torch.randn(3, 2)
    first, again, other = (certify(field, h, steps=3, step_size=0.1, samples=32, seed=seed) for seed in (0, 0, 1))
    assert str(first) == str(again)
    assert not torch.equal(first.sampled.worst_rate, other.sampled.worst_rate)


def test_under_inference_mode_and_without_a_trace() -> None:
    field = LyapunovField(MLPEnergy(2), MLPTangent(2))
    h = torch.randn(2, 2, requires_grad=True)
    with torch.inference_mode():
        assert certify(field, h, steps=2, step_size=0.1, samples=2).holds
    assert not certify(field, h, steps=2, step_size=0.1, samples=2).energy.requires_grad
    assert all(parameter.grad is None for parameter in field.parameters())


# -- reading, saving, drawing -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    torch.manual_seed(0)
    field = LyapunovField(Himmelblau(), MLPTangent(2), alpha=0.05, beta=3.0)
    return certify(field, 4 * torch.rand(14, 2) - 2, steps=10, step_size=0.05, samples=16)


def test_it_reads_as_a_table(certificate: Certificate) -> None:
    text = str(certificate)
    assert text.startswith("LyapunovField, 14 systems (float32), euler, step 0.05, time 0.5")
    assert "<T,g>: over |T| |g|" in text
    assert "... and 2 more systems" in text
    assert "sampled: the energy grows along the field at 0 of 224 states; at most 1.63% of such states" in text
    assert "sampled evidence, not a proof" in text
    header, rows = certificate.rows()
    assert len(rows) == 14
    assert {len(row) for row in rows} == {len(header)}


def test_it_comes_back_from_a_file(certificate: Certificate, tmp_path: Path) -> None:
    path = certificate.save(tmp_path / "deep" / "certificate.json")
    read = Certificate.load(path)
    assert str(read) == str(certificate)
    assert torch.equal(read.energy, certificate.energy)
    assert torch.equal(read.largest_step, certificate.largest_step)
    assert read.holds == certificate.holds
    written = json.loads(path.read_text())  # strict JSON: infinities are strings
    assert written["sampled evidence"] is True
    json.dumps(written, allow_nan=False)
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="is not a certificate of format 1"):
        Certificate.load(tmp_path / "other.json")


def test_infinities_survive_the_file(tmp_path: Path) -> None:
    field = LyapunovField(Quadratic([1.0, 1.0]))
    made = certify(field, torch.ones(1, 2), steps=2, step_size=0.1, method="armijo_euler", samples=2)
    assert torch.isinf(Certificate.load(made.save(tmp_path / "c.json")).largest_step).all()


def test_it_draws_itself(certificate: Certificate, tmp_path: Path) -> None:
    figure = certificate.plot(tmp_path / "a" / "certificate.png")
    assert (tmp_path / "a" / "certificate.png").stat().st_size > 10_000
    landscape, energy = figure.axes
    legend = [text.get_text() for text in landscape.get_legend().get_texts()]
    assert legend == ["start", "descent", "tangential", "combined"]
    assert len(energy.get_lines()) >= 14
    read = Certificate.load(certificate.save(tmp_path / "c.json"))
    assert len(read.plot().axes) == 1  # the landscape needs the field
    flat = certify(LyapunovField(MLPEnergy(3)), torch.randn(2, 3), steps=2, step_size=0.1, samples=2)
    assert len(flat.plot().axes) == 1


# -- bounds -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_clopper_pearson_against_scipy(case: tuple[int, int], confidence: float) -> None:
    hits, trials = case
    low, high = clopper_pearson(hits, trials, confidence)
    exact = scipy.stats.binomtest(hits, trials).proportion_ci(confidence, "exact")
    assert low == pytest.approx(exact.low, abs=1e-9)
    assert high == pytest.approx(exact.high, abs=1e-9)


@pytest.mark.parametrize("wrong", [(1, 0, 0.9), (3, 2, 0.9), (-1, 2, 0.9), (1, 2, 1.0)])
def test_clopper_pearson_refuses(wrong: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError):
        clopper_pearson(*wrong)


# -- wrong input ------------------------------------------------------------------------------------------------------


def test_wrong_input() -> None:
    field, h = LyapunovField(Quadratic([1.0, 1.0])), torch.ones(1, 2)
    steps: dict[str, Any] = {"steps": 2, "step_size": 0.1}
    with pytest.raises(TypeError, match="certify needs a field with energy"):
        certify(torch.neg, h, **steps)
    with pytest.raises(TypeError, match=r"h0 must be a tensor of float32 or float64, got torch\.int64"):
        certify(field, h.long(), **steps)
    with pytest.raises(ValueError, match="there is nothing to certify"):
        certify(field, h[:0], **steps)
    with pytest.raises(ValueError, match="samples must be at least 1"):
        certify(field, h, **steps, samples=0)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        certify(field, h, **steps, confidence=1.5)
    with pytest.raises(ValueError, match="say how far to go"):
        certify(field, h)
    with pytest.raises(ValueError, match=r"sampler must give states of shape \[1, 2\], got \[3\]"):
        certify(field, h, **steps, sampler=lambda generator: torch.ones(3))


def test_on_every_device(device: torch.device) -> None:
    field = LyapunovField(MLPEnergy(2), MLPTangent(2)).to(device)
    certificate = certify(field, torch.randn(3, 2, device=device), steps=3, step_size=0.01, samples=4)
    assert certificate.holds
    assert "no violation was seen" in str(certificate)


def test_a_guarded_flow_is_certified_as_it_steps() -> None:
    torch.manual_seed(0)
    field, h = LyapunovField(Quadratic([1.0, 30.0])), torch.randn(8, 2)
    plain, guarded = (
        certify(Flow(field, steps=5, step_size=0.2, guard=guard), h, samples=20) for guard in (False, True)
    )
    assert not plain.holds
    assert guarded.holds
    assert (guarded.method, guarded.dissipative) == ("guarded euler", True)
    assert bool(torch.isinf(guarded.largest_step).all())
    assert guarded.sampled.stepping is not None
    assert int(guarded.sampled.stepping.sum()) == 0


def test_a_lost_energy_is_a_rise_and_the_worst_is_told() -> None:
    energy = torch.tensor([[1.0, 3.0], [float("nan"), 2.0]])
    assert _rise(energy, torch.zeros_like(energy)).tolist() == [float("inf"), 0.0]
    assert _worst([torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([2.0])]).tolist() == [3.0]
