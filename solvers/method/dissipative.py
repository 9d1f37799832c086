r"""Methods that never raise the energy, whatever step size they are given.

For a field with an energy V, each promises :math:`V(y_1) \le V(y_0)` for every system at every accepted step, up to
rounding. They differ in how they propose a step; :class:`DissipativeMethod` judges the proposal by the energy itself
and shortens the steps of those systems for which it does not fall. Where the energy depends on time explicitly, it is
taken at the start of the step.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import final

import torch
from torch import Tensor

from ..root_finding import Newton, attach_root, find_root
from ..systems import Systems
from ..term import Term
from .base import Method, Step, register
from .explicit import ExplicitRK, move
from .tableaus import DOPRI5, RK4

# How much of the machine epsilon, relative to the energy and to what a rounding of the state does to it, counts as
# rounding and not as a rise.
_ROUNDINGS = 16.0
_MAX_TRIES = 80
_LANDINGS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """A step that has not been judged yet: the new state and the time that it belongs to.

    `evaluations` and `energies` count calls of the field and of its energy, for each system or for all alike. `solved`
    is false for systems whose step could not be computed; they try a shorter one.
    """

    y1: Tensor
    t1: Tensor
    evaluations: int | Tensor
    energies: int | Tensor = 0
    error: Tensor | None = None
    solved: Tensor | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """What is known of the start of a step: time, state, derivative, energy and the gradient of the energy.

    `slope` is dV/dt, at most zero; a rise of the energy by less than `rounding` is not counted as one.
    """

    t: Tensor
    y: Tensor
    f: Tensor
    energy: Tensor
    gradient: Tensor
    slope: Tensor
    rounding: Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """Which part of the step every system takes; those in `plainly` follow the descent part of the field alone."""

    fraction: Tensor
    plainly: Tensor
    resting: Tensor


class DissipativeMethod(Method):
    """Proposes steps and keeps those along which the energy does not rise; the others are tried again, shorter.

    The tangential part of a field may spin so fast that no step worth taking lowers the energy. Where a system would
    need less than `smallest_fraction` of its step, it follows the descent part of the field alone, its projection on
    the energy's gradient, as far as that lowers the energy. Where nothing does, the system is at a minimum to within
    rounding and rests: any path on which the energy does not rise stays there.
    """

    dissipative = True
    smallest_fraction = 1e-3
    sufficient = 0.0  # part of the first-order decrease that a step has to achieve

    @abstractmethod
    def propose(self, term: Term, start: Start, t1: Tensor, land: Tensor | None) -> Proposal:
        """A step from the start to `t1`, for every system.

        Systems in `land` have to reach `t1` exactly; the others may reach another time, which the proposal names.
        """

    def step(self, term: Term, t0: Tensor, t1: Tensor, y0: Tensor, f0: Tensor | None, land: Tensor | None) -> Step:
        known = f0 is not None
        f0 = term.first_velocity(t0, t1, y0) if f0 is None else f0
        start = _begin(term, t0, y0, f0)
        plan = _Plan(torch.ones_like(t0.detach()), *(torch.zeros_like(t0, dtype=torch.bool) for _ in range(2)))
        proposal = self._carry_out(term, start, t1, plan, land)
        zero = torch.zeros_like(plan.resting, dtype=torch.int64)
        good, energy = self._judge(term, start, proposal)
        evaluations = zero + proposal.evaluations + (0 if known else 1)
        energies, rejections = zero + proposal.energies + 2, zero  # two: at the start, and of the proposal
        if not bool(good.all()):
            with torch.no_grad():
                plan, rejections, spent = self._shorten(term, start, t1, plan, good, energy, land)
            proposal = self._carry_out(term, start, t1, plan, land)
            evaluations = evaluations + spent[0] + proposal.evaluations
            energies = energies + spent[1] + proposal.energies
        reached = torch.where(plan.resting, t1, proposal.t1)
        hopeless = ~torch.isfinite(start.energy)
        h = term.systems.spread((reached - t0).to(term.real_dtype))
        return Step(
            t0, reached, h, y0, proposal.y1, evaluations, proposal.error, f0, None, (), hopeless, rejections, energies
        )

    def _carry_out(self, term: Term, start: Start, t1: Tensor, plan: _Plan, land: Tensor | None) -> Proposal:
        """Propose the part of the step that the plan gives to each system."""
        part = start.t + plan.fraction * (t1 - start.t)
        aside = plan.plainly | plan.resting
        whole = (plan.fraction == 1) & ~aside
        goal = torch.where(whole, t1, torch.where(aside, start.t, part))
        proposal = self.propose(term, start, goal, None if land is None else land & whole)
        if not bool(plan.plainly.any()):
            return proposal
        h = term.systems.spread((part - start.t).to(term.real_dtype))
        descended = start.y + h * _descent_part(term.systems, start)
        y1 = torch.where(term.systems.spread(plan.plainly), descended, proposal.y1)
        return dataclasses.replace(proposal, y1=y1, t1=torch.where(plan.plainly, part, proposal.t1))

    @torch.no_grad()
    def _judge(self, term: Term, start: Start, proposal: Proposal) -> tuple[Tensor, Tensor]:
        """Which systems may keep the proposal, and its energies."""
        energy = term.energy(start.t, proposal.y1.detach())
        taken = (proposal.t1 - start.t).to(energy.dtype)
        # Rounding excuses a rise only where no decrease that would stand out from it is due.
        due = taken * start.slope
        good = energy <= start.energy + torch.where(-due > 4 * start.rounding, self.sufficient * due, start.rounding)
        if proposal.solved is not None:
            good = good & proposal.solved
        # A field that is not finite is for the loop to report; shortening the step would not help.
        lost = ~torch.isfinite(term.systems.total(start.f * 0)) | ~torch.isfinite(start.energy)
        return good | lost, energy

    def _shorten(
        self, term: Term, start: Start, t1: Tensor, plan: _Plan, good: Tensor, energy: Tensor, land: Tensor | None
    ) -> tuple[_Plan, Tensor, tuple[Tensor, Tensor]]:
        """Find for each system the part of the step that it can take; also, the tries and evaluations it took."""
        pending = ~good
        tries = pending.long()
        evaluations = energies = torch.zeros_like(tries)
        fraction, plainly = plan.fraction, plan.plainly
        asked = (t1 - start.t).to(energy.dtype)
        for _ in range(_MAX_TRIES):
            # The minimum of the parabola through the energy and its slope at the start and the energy at the end.
            slope = start.slope * asked * fraction
            bend = energy - start.energy - slope
            guess = torch.where(torch.isfinite(bend) & (bend > 0), -slope / (2 * bend), 0.1).clamp(0.1, 0.5)
            fraction = torch.where(pending, fraction * guess, fraction)
            switching = pending & ~plainly & (fraction < self.smallest_fraction)
            fraction, plainly = torch.where(switching, 1.0, fraction), plainly | switching
            plan = _Plan(fraction, plainly, plan.resting)
            proposal = self._carry_out(term, start, t1, plan, land)
            good, energy = self._judge(term, start, proposal)
            evaluations = evaluations + proposal.evaluations * pending
            energies = energies + (proposal.energies + 1) * pending
            pending = pending & ~good
            tries = tries + pending
            if not bool(pending.any()):
                break
        # A fraction that time cannot resolve is no step either.
        stuck = plainly & (start.t + plan.fraction * (t1 - start.t) <= start.t)
        resting = pending | stuck
        return _Plan(plan.fraction, plan.plainly & ~resting, resting), tries, (evaluations, energies)


def _begin(term: Term, t0: Tensor, y0: Tensor, f0: Tensor) -> Start:
    with torch.no_grad():
        energy, gradient = term.energy_and_gradient(t0, y0)
        systems = term.systems
        slope = systems.inner(gradient, f0).clamp(max=0)
        eps = torch.finfo(energy.dtype).eps
        rounding = _ROUNDINGS * eps * (energy.abs() + systems.total((gradient * y0).abs()))
    return Start(t0, y0, f0, energy, gradient, slope, rounding)


def _descent_part(systems: Systems, start: Start) -> Tensor:
    """The field's projection on the energy's gradient; the gradient is kept as it is when gradients are recorded."""
    square = systems.inner(start.gradient, start.gradient)
    share = systems.inner(start.f, start.gradient) / torch.where(square > 0, square, 1.0)
    return systems.spread(share.clamp(max=0)) * start.gradient


@final
class ArmijoEuler(DissipativeMethod):
    r"""Forward Euler with backtracking: :math:`V(y_1) \le V(y_0) + c\, \Delta t\, \dot V(y_0)`, for each system.

    Args:
        sufficient: The constant c, the part of the first-order decrease that a step has to achieve.
    """

    name = "armijo_euler"
    order = 1
    stages = 1

    def __init__(self, sufficient: float = 1e-4) -> None:
        if not 0 <= sufficient < 1:
            raise ValueError(f"sufficient must lie in [0, 1), got {sufficient}")
        self.sufficient = sufficient

    def propose(self, term: Term, start: Start, t1: Tensor, land: Tensor | None) -> Proposal:
        h = term.systems.spread((t1 - start.t).to(term.real_dtype))
        return Proposal(torch.addcmul(start.y, start.f, h), t1, 0)


@final
class RelaxedRK(DissipativeMethod):
    r"""Relaxation Runge-Kutta: the update is scaled so that the energy changes as the stages say.

    With the update d of an explicit method, the factor :math:`\gamma \approx 1` of each system solves

    .. math:: V(y_0 + \gamma d) - V(y_0) = \gamma\, \Delta t \sum_i b_i \langle \nabla V(Y_i), f(Y_i) \rangle,

    and the step reaches the time :math:`t_0 + \gamma \Delta t`, which keeps the order of the method.

    References: D. I. Ketcheson, SIAM J. Numer. Anal. 57 (2019); H. Ranocha et al., SIAM J. Sci. Comput. 42 (2020).
    """

    def __init__(self, name: str, base: ExplicitRK) -> None:
        self.name = name
        self.base = base
        self.order = base.order
        self.stages = base.stages
        self.adaptive = base.adaptive

    def propose(self, term: Term, start: Start, t1: Tensor, land: Tensor | None) -> Proposal:
        size = t1 - start.t
        trial = self._try(term, start, size)
        gamma, taken, spent = trial.gamma.to(size.dtype), size, trial.spent
        if land is None or not bool(land.any()):
            return Proposal(trial.moved(term, start, gamma), start.t + gamma * size, *spent, trial.error)
        # To end at a given time, find a step whose own factor leads there. Whatever is found, the factor that is used
        # is the one that leads there exactly: the state belongs to its time, and the energy decides as always.
        factor = torch.ones_like(gamma)
        for _ in range(_LANDINGS):
            off = land & ((gamma - factor).detach().abs() > _close(term.real_dtype))
            if not bool(off.any()):
                break
            taken = torch.where(off, size / gamma, taken)
            factor = torch.where(off, gamma, factor)
            trial = self._try(term, start, taken)
            gamma = trial.gamma.to(size.dtype)
            spent = spent[0] + trial.spent[0] * off, spent[1] + trial.spent[1] * off
        y1 = trial.moved(term, start, torch.where(land, factor, gamma))
        return Proposal(y1, torch.where(land, t1, start.t + gamma * taken), *spent, trial.error)

    def _try(self, term: Term, start: Start, size: Tensor) -> _Relaxed:
        """A step of the base method, and the factor that its update should be scaled by."""
        before = term.calls
        systems, base = term.systems, self.base
        h = systems.spread(size.to(term.real_dtype))
        stage_times = term.stage_times(start.t, start.t + size, base.nodes)
        plain, _, stages = base.advance(term, [systems.spread(t) for t in stage_times], h, start.y, start.f)
        update = plain - start.y
        expected = torch.zeros_like(start.energy)
        for i, weight in base.weights:
            point = start.y if i == 0 else move(start.y, h, base.rows[i - 1], stages)
            _, gradient = term.energy_and_gradient(start.t, point)
            expected = expected + weight * systems.inner(gradient, h * stages[i])
        gamma, energies = _relaxation(term, start, update, expected)
        calls = torch.full_like(energies, term.calls - before)
        return _Relaxed(update, gamma, base.error(h, stages), (calls, energies + len(base.weights)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Relaxed:
    """An update, the factor that it should be scaled by, and the evaluations of field and energy that it took."""

    update: Tensor
    gamma: Tensor
    error: Tensor | None
    spent: tuple[Tensor, Tensor]

    def moved(self, term: Term, start: Start, factor: Tensor) -> Tensor:
        return start.y + term.systems.spread(factor.to(term.real_dtype)) * self.update


def _close(dtype: torch.dtype) -> float:
    """How near a factor has to be to its root."""
    return float(torch.finfo(dtype).eps ** 0.75)


def _relaxation(term: Term, start: Start, update: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """The factor near 1 at which the energy changes as expected; 1 where rounding hides it or there is none.

    Also, how many energies it took to find it.
    """
    with torch.no_grad():
        gamma = torch.ones_like(start.energy)
        settled = torch.zeros_like(gamma, dtype=torch.bool)
        energies = torch.zeros_like(gamma, dtype=torch.int64)
        for _ in range(8):
            energies = energies + 2 * ~settled
            change, clear = _newton_change(term, start, update, expected, gamma)
            change = torch.where(clear, change, 0.0)
            gamma = torch.where(settled, gamma, gamma + change)
            settled = settled | ~(change.abs() > _close(gamma.dtype)) | ~((gamma - 1).abs() < 0.5)
            if bool(settled.all()):
                break
        found = (gamma - 1).abs() < 0.5  # false for NaN as well
        gamma = torch.where(found, gamma, 1.0)
    if torch.is_grad_enabled() and (update.requires_grad or expected.requires_grad):
        # Newton's method from the root: one step has the right first derivative, two have the second as well.
        for _ in range(2):
            change, clear = _newton_change(term, start, update, expected, gamma)
            gamma = gamma + torch.where(found & clear, change - change.detach(), 0.0)
        energies = energies + 4
    return gamma, energies


def _newton_change(term: Term, start: Start, update: Tensor, expected: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """One Newton step on `(V(y0 + gamma d) - V(y0)) / gamma = expected`, in which the root at zero is gone.

    Also, where it is clear: where the rounding of the energies changes its result by less than a thousandth.
    """
    systems = term.systems
    energy, gradient = term.energy_and_gradient(start.t, start.y + systems.spread(gamma) * update)
    mean = (energy - term.energy(start.t, start.y)) / gamma
    slope = (systems.inner(gradient, update) - mean) / gamma
    clear = slope.detach().abs() > 1e3 * start.rounding
    return (expected - mean) / torch.where(clear, slope, 1.0), clear


@final
class DiscreteGradient(DissipativeMethod):
    r"""Gonzalez' midpoint discrete gradient, with the tangential part projected on its orthogonal complement.

    With :math:`y_m = (y_0 + y_1)/2`, :math:`\Delta = y_1 - y_0` and

    .. math::
        \bar V = \nabla V(y_m) + \frac{V(y_1) - V(y_0) - \langle \nabla V(y_m), \Delta \rangle}{|\Delta|^2} \Delta,

    the step solves :math:`\Delta / \Delta t = -\alpha \bar V + \bar T`, where the field at the midpoint is
    :math:`-\alpha \nabla V + T` and :math:`\bar T` is T projected on the complement of :math:`\bar V`. So
    :math:`V(y_1) - V(y_0) = -\Delta t\, \alpha |\bar V|^2` exactly, and the tangential part does no work.

    Reference: O. Gonzalez, J. Nonlinear Sci. 6 (1996).
    """

    name = "discrete_gradient"
    order = 2
    stages = 1
    implicit = True

    def __init__(self, newton: Newton | None = None) -> None:
        self.newton = Newton() if newton is None else newton

    def propose(self, term: Term, start: Start, t1: Tensor, land: Tensor | None) -> Proposal:
        systems = term.systems
        h = (t1 - start.t).to(term.real_dtype)
        middle = (start.t + t1) / 2

        def residual(velocity: Tensor) -> Tensor:
            return _discrete_field(term, start, middle, h, velocity) - velocity

        with torch.no_grad():
            over_h = start.y.abs() / systems.spread(torch.where(h == 0, 1.0, h))
            scale = systems.inner(over_h, over_h).sqrt()
            scale = torch.maximum(scale, systems.inner(start.f, start.f).sqrt())
            root = find_root(residual, start.f, scale, systems, self.newton)
        velocity = root.x
        if torch.is_grad_enabled():
            velocity = attach_root(residual, velocity, systems, self.newton)
        y1 = torch.addcmul(start.y, velocity, systems.spread(h))
        return Proposal(y1, t1, root.evaluations, 3 * root.evaluations, solved=root.converged)


def _discrete_field(term: Term, start: Start, middle: Tensor, h: Tensor, velocity: Tensor) -> Tensor:
    systems = term.systems
    inner = systems.inner
    move_by = systems.spread(h) * velocity
    point = start.y + move_by / 2
    f = term(middle, point)
    _, gradient = term.energy_and_gradient(start.t, point)
    before, after = term.energy(start.t, start.y), term.energy(start.t, start.y + move_by)
    work = inner(gradient, move_by)
    gap = after - before - work
    length = inner(move_by, move_by)
    # What is left of the gap below its rounding error is noise, and would be divided by a small length.
    noise = torch.finfo(gap.dtype).eps * (before.abs() + after.abs() + work.abs())
    matters = (gap.abs() > noise) & (length > 0)
    correction = torch.where(matters, gap / torch.where(matters, length, 1.0), 0.0)
    discrete = gradient + systems.spread(correction) * move_by

    descent = _ratio(inner(f, gradient), inner(gradient, gradient))
    tangent = f - systems.spread(descent) * gradient
    overlap = _ratio(inner(tangent, discrete), inner(discrete, discrete))
    return tangent + systems.spread(descent - overlap) * discrete


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


register(ArmijoEuler())
register(RelaxedRK("relaxed_rk4", ExplicitRK("rk4", RK4)))
register(RelaxedRK("relaxed_dopri5", ExplicitRK("dopri5", DOPRI5)))
register(DiscreteGradient())
