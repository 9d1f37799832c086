"""`odeint`, `odeint_adjoint` and `odeint_event` stand in for torchdiffeq's: the oracle here is torchdiffeq itself.

Steps of a fixed size agree to rounding. Adaptive methods agree to a small multiple of the tolerance, at no more
evaluations of the field; only the last step differs, which ends at the last time instead of beyond it, and the
interpolants of `dopri8` and `bosh3`, which are more accurate here. A test runs the same code with both modules, which
it calls `ode`.
"""

import contextlib
import inspect
import math

import pytest
import torch
import torchdiffeq
from torch import nn

import solvers
from solvers import Rows, SolveError

# torchdiffeq tells fixed steps to `callback_step` only, and warns of the other callbacks.
pytestmark = pytest.mark.filterwarnings(r"ignore:Solver '\w+' does not support callbacks")

FIXED = ("euler", "midpoint", "heun2", "heun3", "rk4")
ADAPTIVE = ("dopri5", "dopri8", "bosh3")
INTERFACES = ("odeint", "odeint_adjoint")
LIBRARIES = pytest.mark.parametrize("ode", [torchdiffeq, solvers], ids=["torchdiffeq", "solvers"])
ROUNDING = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    torch.float32: {"rtol": 5e-6, "atol": 1e-6},
    torch.complex128: {"rtol": 1e-12, "atol": 1e-13},
    torch.complex64: {"rtol": 5e-6, "atol": 1e-6},
}


def tensor(*values, dtype=torch.float64, **settings):
    return torch.tensor(values, dtype=dtype, **settings)


def times(start, end, count, dtype=torch.float64):
    return torch.linspace(start, end, count, dtype=dtype)


def same(ours, theirs):
    """Equal up to rounding, in shape and type too; also part by part for tuples."""
    parts = zip(ours, theirs, strict=True) if isinstance(theirs, (tuple, list)) else [(ours, theirs)]
    for our, their in parts:
        torch.testing.assert_close(our, their, **ROUNDING[their.dtype])


def close(ours, theirs, within):
    torch.testing.assert_close(ours, theirs, rtol=within, atol=within)


def both(run):
    """What `run(ode)` gives with `solvers` and with `torchdiffeq`."""
    return run(solvers), run(torchdiffeq)


def wavy(t, y):
    """A field that works for any shape and type of state and depends on time."""
    return -(1 + torch.sin(3 * t)) * y + 0.3 * torch.cos(y)


class Field(nn.Module):
    """A field with parameters that depends on time and couples the entries; it counts how often it is called."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[-0.5, 1.3], [-1.1, -0.4]], dtype=dtype))
        self.speed = nn.Parameter(torch.tensor(0.7, dtype=dtype))
        self.calls = 0

    def forward(self, t, y):
        self.calls += 1
        return torch.tanh(y @ self.weight) * (1 + 0.5 * torch.sin(self.speed * t))


class Recorder:
    """A field that remembers when it was evaluated and what its callbacks were told."""

    def __init__(self, func):
        self.func = func
        self.times = []
        self.told = {"step": [], "accept": [], "reject": []}

    def __call__(self, t, y, *args):
        self.times.append(float(t))
        return self.func(t, y, *args)

    @property
    def calls(self):
        return len(self.times)

    def steps(self, kind):
        """Start and size of every step of this kind."""
        return [(float(t), float(dt)) for t, _, dt in self.told[kind]]

    def told_before(self, end):
        """What the callbacks were told until a try reached the end."""
        reaching = next(t for t, _, dt in self.told["step"] if abs(end - t) <= dt + 1e-9)
        return {
            kind: [call for call in calls if abs(end - call[0]) > abs(end - reaching)]
            for kind, calls in self.told.items()
        }

    def callback_step(self, t, y, dt):
        self.told["step"].append((t, y, dt))

    def callback_accept_step(self, t, y, dt):
        self.told["accept"].append((t, y, dt))

    def callback_reject_step(self, t, y, dt):
        self.told["reject"].append((t, y, dt))


def same_steps(ours, theirs, end, within=1e-6):
    """The same steps tried, accepted and rejected, until one reaches the end: there ours stops, theirs goes on."""
    ours, theirs = ours.told_before(end), theirs.told_before(end)
    assert ours["accept"]
    for kind in theirs:
        for our, their in zip(ours[kind], theirs[kind], strict=True):
            for our_value, their_value in zip(our, their, strict=True):  # time, state and size
                close(our_value, their_value, within)


# -- the interface ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["odeint", "odeint_adjoint", "odeint_event"])
def test_takes_the_arguments_of_torchdiffeq(name):
    ours, theirs = both(lambda ode: inspect.signature(getattr(ode, name)).parameters)
    for argument, parameter in theirs.items():
        assert argument in ours
        assert ours[argument].kind == parameter.kind
        if argument != "odeint_interface":
            assert ours[argument].default == parameter.default
    added = [ours[argument] for argument in ours if argument not in theirs]
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in added)


@pytest.mark.parametrize("method", [None, "euler"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (0,)], ids=str)
def test_shape_of_the_output(shape, method):
    y0 = torch.full(shape, 0.5)
    states = solvers.odeint(wavy, y0, times(0.0, 1.0, 4), method=method)
    assert states.shape == (4, *shape)
    assert states.dtype == y0.dtype
    assert torch.equal(states[0], y0)
    if y0.numel():  # torchdiffeq finds NaN in an empty state
        close(states, torchdiffeq.odeint(wavy, y0, times(0.0, 1.0, 4), method=method), 2e-6)


def test_memory_layout_of_the_state_does_not_matter():
    y0 = tensor([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    expected = solvers.odeint(wavy, y0, times(0.0, 1.0, 3))
    found = solvers.odeint(wavy, y0.t().contiguous().t(), times(0.0, 1.0, 3))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
@pytest.mark.parametrize("parts", [False, True], ids=["tensor", "tuple"])
def test_one_time_gives_a_copy_of_the_state(interface, method, parts):
    leaf = tensor(1.0, 2.0, requires_grad=True)
    settings = {} if interface == "odeint" else {"adjoint_params": ()}

    def run(ode):
        y0 = (leaf, leaf) if parts else leaf
        return getattr(ode, interface)(lambda t, y: y, y0, tensor(0.3), method=method, **settings)

    ours, theirs = both(run)
    same(ours, theirs)
    (gradient,) = torch.autograd.grad((ours[0] if parts else ours).sum(), leaf)
    assert torch.equal(gradient, torch.ones(2, dtype=torch.float64))
    with torch.no_grad():
        states = run(solvers)[0] if parts else run(solvers)
        states += 1  # what the caller does with the result must not reach y0
    assert torch.equal(leaf, tensor(1.0, 2.0))


# -- methods of a fixed step size -------------------------------------------------------------------------------

GRIDS = {
    "steps of t": {},
    "step_size": {"step_size": 0.07},
    "step_size that fits": {"step_size": 0.05},
    "step_size beyond the end": {"step_size": 5.0},
    "step_size, a tensor": {"step_size": torch.tensor(0.07)},
    "step_size, cubic": {"step_size": 0.07, "interp": "cubic"},
    "cubic": {"interp": "cubic"},
    "grid_constructor": {"grid_constructor": lambda func, y0, t: times(t[0], t[-1], 8)},
    "grid_constructor, cubic": {"grid_constructor": lambda func, y0, t: times(t[0], t[-1], 8), "interp": "cubic"},
    "perturb": {"step_size": 0.07, "perturb": True},
    "norm": {"step_size": 0.07, "norm": torch.amax},
}


@pytest.mark.parametrize("span", [(0.2, 1.1), (1.1, 0.2)], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_equal_those_of_torchdiffeq(method, grid, span):
    """With and without callbacks, which take different ways through the package."""

    def run(ode, field):
        return ode.odeint(field, tensor(0.5, -1.0), times(*span, 5), method=method, options=GRIDS[grid])

    field = Field()
    ours, our_calls = run(solvers, field), field.calls
    theirs, their_calls = run(torchdiffeq, field), field.calls - our_calls
    same(ours, theirs)
    assert our_calls <= their_calls

    ours, theirs = Recorder(wavy), Recorder(wavy)
    same(run(solvers, ours), run(torchdiffeq, theirs))
    same(torch.tensor(ours.steps("step")), torch.tensor(theirs.steps("step")))


@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("time_dtype", [torch.float32, torch.float64], ids=str)
def test_fixed_steps_in_every_precision(method, dtype, time_dtype):
    y0 = torch.tensor([0.5, -1.0]).to(dtype) * (1 + 0.5j if dtype.is_complex else 1)
    seen = []

    def field(t, y):
        seen.append((t.dtype, y.dtype))
        return wavy(t, y)

    def run(ode):
        return ode.odeint(field, y0, times(0.0, 1.0, 5, time_dtype), method=method, options={"step_size": 0.125})

    ours, theirs = both(run)
    assert ours.dtype == dtype
    coarser = dtype if time_dtype == torch.float64 else torch.float32  # torchdiffeq adds up times in their own type
    torch.testing.assert_close(ours, theirs, **ROUNDING[coarser])
    assert set(seen) == {(dtype.to_real(), dtype)}


@pytest.mark.parametrize("sign", [1, -1], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("method", ["heun2", "rk4"])
def test_perturb_sees_a_jump_from_inside_the_step(method, sign):
    def field(t, y):  # 1 until half time, then -3
        return torch.where(sign * t <= 0.5, sign, -3.0 * sign) * torch.ones_like(y)

    def run(ode, perturb):
        options = {"step_size": 0.25, "perturb": perturb}
        return ode.odeint(field, tensor(0.0), sign * times(0.0, 1.0, 2), method=method, options=options)

    for perturb in (True, False):
        ours, theirs = both(lambda ode, perturb=perturb: run(ode, perturb))
        same(ours, theirs)
    close(run(solvers, True)[-1], tensor(-1.0), 1e-14)
    assert abs(run(solvers, False)[-1] + 1) > 0.05


def test_perturb_moves_time_by_one_unit_in_the_last_place():
    def run(ode):
        field = Recorder(wavy)
        options = {"step_size": 0.25, "perturb": True}
        ode.odeint(field, tensor(0.5), times(0.0, 1.0, 2), method="heun2", options=options)
        return field.times

    ours, theirs = both(run)
    assert ours == theirs
    assert ours[1] == math.nextafter(0.25, 0.0)


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["increasing", "decreasing"])
def test_grid_constructor_is_called_as_by_torchdiffeq(span):
    """With a state and the times of the caller, in the caller's direction."""
    t, y0 = times(*span, 3), tensor(0.5, 1.0)

    def run(ode):
        called = []

        def grid(func, y, t):
            called.append((func(t[0], y), y, t))
            return t

        ode.odeint(wavy, y0, t, method="euler", options={"grid_constructor": grid})
        return called

    ours, theirs = both(run)
    assert len(ours) == len(theirs) == 1
    _, y, given = ours[0]
    same((y, given), (y0, t))
    same((y, given), theirs[0][1:])


def test_fixed_steps_obey_max_num_steps():
    """Too low a limit is an error, whichever way the steps are given; never a coarser solution."""
    t = times(0.0, 1.0, 11)
    for options in ({}, {"step_size": 0.1}, {"grid_constructor": lambda func, y0, t: t}):
        exact = solvers.odeint(wavy, tensor(0.5), t, method="euler", options=options)
        enough = solvers.odeint(wavy, tensor(0.5), t, method="euler", options=options | {"max_num_steps": 10})
        assert torch.equal(enough, exact)
        with pytest.raises(SolveError, match="step limit"):
            solvers.odeint(wavy, tensor(0.5), t, method="euler", options=options | {"max_num_steps": 5})


def test_tolerances_mean_nothing_to_fixed_steps():
    ours, theirs = both(lambda ode: ode.odeint(wavy, tensor(0.5), times(0, 1, 5), method="rk4", rtol=0.0, atol=0.0))
    same(ours, theirs)


# -- adaptive methods -------------------------------------------------------------------------------------------

_SKEW = torch.randn(10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
_SKEW = (_SKEW - _SKEW.T) / 3


def _driven(t):
    """The solution of y' = 2 y / t + t^4 sin 2t - t^2 + 4 t^3 that is 1 at 1."""

    def particular(t):
        inner = -(t**2) / 2 * torch.cos(2 * t) + t / 2 * torch.sin(2 * t) + torch.cos(2 * t) / 4 - t + 2 * t**2
        return t**2 * inner

    return particular(t) + (1 - particular(torch.ones_like(t))) * t**2


PROBLEMS = {  # field, first state, times, solution
    "driven": (
        lambda t, y: 2 * y / t + t**4 * torch.sin(2 * t) - t**2 + 4 * t**3,
        tensor(1.0),
        times(1.0, 5.0, 5),
        lambda t: _driven(t)[:, None],
    ),
    "skew": (
        lambda t, y: _SKEW @ y,
        torch.ones(10, dtype=torch.float64),
        times(0.0, 3.0, 4),
        lambda t: torch.matrix_exp(t[:, None, None] * _SKEW).sum(-1),
    ),
    "decay": (lambda t, y: -y, tensor(1.0, 0.5), times(0, 4, 9), lambda t: torch.exp(-t)[:, None] * tensor(1.0, 0.5)),
    "root": (lambda t, y: -(y**3) / 2, tensor(1.0), times(0.0, 4.0, 9), lambda t: (1 + t).rsqrt()[:, None]),
    "backward": (lambda t, y: -y, tensor(1.0), times(0.0, -3.0, 9), lambda t: torch.exp(-t)[:, None]),
    "stiffish": (
        lambda t, y: -100 * (y - torch.cos(t)),
        tensor(0.0),
        times(0.0, 0.4, 3),
        lambda t: ((1e4 * torch.cos(t) + 100 * torch.sin(t) - 1e4 * torch.exp(-100 * t)) / (1e4 + 1))[:, None],
    ),
    "many times": (lambda t, y: -y, tensor(1.0), times(0.0, 1.0, 50), lambda t: torch.exp(-t)[:, None]),
}


@pytest.mark.parametrize("tight", [False, True], ids=["loose", "tight"])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_methods_are_as_accurate_at_no_more_evaluations(method, problem, tight):
    func, y0, t, solution = PROBLEMS[problem]
    rtol = 1e-4 if not tight else 1e-5 if method == "bosh3" else 1e-7  # a low order takes very many steps
    atol = rtol / 100

    def run(ode):
        field = Recorder(func)
        return ode.odeint(field, y0, t, method=method, rtol=rtol, atol=atol), field.calls

    (ours, our_calls), (theirs, their_calls) = both(run)
    exact = solution(t)
    scale = atol + rtol * exact.abs().amax(1, keepdim=True)
    assert our_calls <= 1.05 * their_calls
    assert ((ours - exact) / scale).abs().max() < 20
    assert ((ours - exact) / scale)[-1].abs().max() < 8
    if method == "dopri5":  # the same interpolant, so that all times can be compared
        assert ((ours - theirs) / scale).abs().max() < 15


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_methods_in_every_precision(method, dtype):
    """y' = c y with a complex c turns and shrinks; its real part alone shrinks."""
    rate = -0.5 + 2.0j if dtype.is_complex else -0.5
    y0 = torch.tensor([1.0, 0.3 - 0.2j] if dtype.is_complex else [1.0, 0.3], dtype=dtype)
    seen = set()

    def field(t, y):
        seen.add((t.dtype, y.dtype))
        return rate * y

    def run(ode):
        return ode.odeint(field, y0, times(0.0, 2.0, 5), method=method, rtol=1e-5, atol=1e-6)

    ours, theirs = both(run)
    assert seen == {(dtype.to_real(), dtype)}
    close(ours[-1], torch.exp(torch.tensor(2 * rate, dtype=dtype)) * y0, 1e-4 if method == "bosh3" else 2e-5)
    close(ours[-1], theirs[-1], 3e-4)


# -- options of adaptive methods --------------------------------------------------------------------------------


def oscillator(t, y):
    return torch.stack([y[1], -(1 + 0.3 * torch.sin(t)) * y[0]])


OPTIONS = {
    "none": {},
    "first_step": {"first_step": 0.013},
    "first_step that is rejected": {"first_step": 2.5},
    "max_step": {"max_step": 0.06},
    "min_step": {"min_step": 0.4},
    "min_step is max_step": {"min_step": 0.11, "max_step": 0.11},
    "safety": {"safety": 0.5},
    "ifactor": {"first_step": 1e-4, "ifactor": 2.0},
    "dfactor": {"first_step": 2.9, "dfactor": 0.7},
    "norm": {"norm": lambda y: y.abs().max()},
    "time in float64": {"dtype": torch.float64},
    "tensors": {"first_step": tensor(0.013)[0], "safety": tensor(0.8)[0], "max_step": tensor(0.2)[0]},
    "max_num_steps": {"max_num_steps": 1000},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("method", ADAPTIVE)
def test_options_choose_the_steps_of_torchdiffeq(method, option):
    def run(ode):
        field = Recorder(oscillator)
        settings = {"method": method, "options": OPTIONS[option], "rtol": 1e-4, "atol": 1e-6}
        return ode.odeint(field, tensor(1.0, 0.0), times(0.5, 3.5, 2), **settings), field

    (ours, our_field), (theirs, their_field) = both(run)
    # The error estimate of dopri8 is close to rounding.
    same_steps(our_field, their_field, 3.5, 1e-3 if method == "dopri8" else 1e-6)
    start, size = our_field.steps("accept")[-1]
    assert start + size == pytest.approx(3.5, rel=1e-14)
    if "min_step" not in OPTIONS[option]:  # which gives up the tolerance
        close(ours[-1], theirs[-1], 5e-4 if method == "dopri5" else 5e-3)


def test_options_have_an_effect():
    """So that the test above can fail: every option changes the steps."""

    def steps(options):
        field = Recorder(oscillator)
        solvers.odeint(field, tensor(1.0, 0.0), times(0.5, 3.5, 2), options=options, rtol=1e-4, atol=1e-6)
        return field.steps("accept")

    plain = steps({})
    for name, options in OPTIONS.items():
        assert (steps(options) == plain) == (name in ("none", "time in float64", "max_num_steps")), name


@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.parametrize("t_end", [0.5, 20.0])
def test_max_num_steps_limits_the_tries(count, t_end):
    t = times(0.0, t_end, count)
    counted = Recorder(oscillator)
    expected = solvers.odeint(counted, tensor(1.0, 0.0), t)
    enough = -(-len(counted.told["step"]) // (count - 1))  # torchdiffeq counts anew for each interval of t
    found = solvers.odeint(oscillator, tensor(1.0, 0.0), t, options={"max_num_steps": enough})
    assert torch.equal(found, expected)
    with pytest.raises(SolveError, match="step limit") as raised:
        solvers.odeint(oscillator, tensor(1.0, 0.0), t, options={"max_num_steps": enough - 1})
    assert 0 <= float(raised.value.t) < t_end


def test_max_num_steps_that_suffices_torchdiffeq_suffices():
    """The limit is for each interval of `t`, so that an uneven distribution of steps does no harm."""
    t = tensor(0.0, 0.01, 0.02, 10.0)

    def run(ode):
        return ode.odeint(oscillator, tensor(1.0, 0.0), t, options={"max_num_steps": 130})

    close(*both(run), 1e-6)


@pytest.mark.parametrize("name", ["step_t", "jump_t"])
@pytest.mark.parametrize("sign", [1, -1], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("as_given", [torch.clone, torch.Tensor.tolist, lambda t: t.flip(0), torch.Tensor.float])
def test_steps_end_at_the_given_times(name, sign, as_given):
    """Those outside the time span are ignored."""
    stops = sign * tensor(-1.0, 0.5, 1.25, 9.0)

    def run(ode):
        field = Recorder(wavy)
        states = ode.odeint(field, tensor(0.5), sign * times(0.0, 2.0, 3), options={name: as_given(stops)})
        return states, field

    (ours, our_field), (theirs, their_field) = both(run)
    assert {0.5 * sign, 1.25 * sign} <= {start for start, _ in our_field.steps("accept")}
    assert our_field.calls <= 1.05 * their_field.calls
    close(ours, theirs, 2e-6)


@pytest.mark.parametrize("sign", [1, -1], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_jumps_cost_nothing_where_they_are_named(method, sign):
    """A field with two jumps, constant in between: exact, in few steps, none of them rejected."""

    def jumping(t, y):
        return torch.where(sign * t < 0.3, 1.0, torch.where(sign * t < 1.1, -2.0, 5.0)) * torch.ones_like(y)

    def run(ode, options):
        field = Recorder(jumping)
        states = ode.odeint(field, tensor(0.0, 1.0), sign * times(0.0, 2.0, 2), method=method, options=options)
        return states, field

    named = {"jump_t": sign * tensor(0.3, 1.1), "first_step": 0.4}
    (ours, our_field), (_, their_field) = both(lambda ode: run(ode, named))
    close(ours[-1], tensor(0.0, 1.0) + sign * (0.3 - 1.6 + 4.5), 1e-12)
    assert not our_field.told["reject"]
    assert our_field.calls <= 1.05 * their_field.calls
    _, unnamed = run(solvers, {"first_step": 0.4})
    assert unnamed.calls > 3 * our_field.calls


def test_step_t_and_jump_t_must_differ():
    options = {"step_t": tensor(0.5, 0.7), "jump_t": tensor(0.5)}
    for ode in (torchdiffeq, solvers):
        with pytest.raises(ValueError, match="step_t"):
            ode.odeint(wavy, tensor(0.5), times(0.0, 1.0, 2), options=options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("time_dtype", [torch.float32, torch.float64], ids=str)
def test_dtype_of_time_is_at_least_that_of_the_state(dtype, time_dtype):
    """A solution that is the time itself shows its precision."""

    def run(ode):
        y0, t = torch.zeros(2, dtype=dtype), tensor(0.0, 0.1, 0.7)
        return ode.odeint(lambda t, y: torch.ones_like(y), y0, t, options={"dtype": time_dtype})

    ours, theirs = both(run)
    same(ours, theirs)


def test_norm_is_given_the_scaled_error():
    """In the state's shape; and a norm that sees no error lets the steps grow as fast as they may."""
    shapes = set()

    def blind(error):
        shapes.add(error.shape)
        return error.abs().max() * 0

    def run(ode):
        field = Recorder(wavy)
        y0 = torch.full((2, 3), 0.5, dtype=torch.float64)
        ode.odeint(field, y0, times(0.0, 1.0, 2), options={"norm": blind, "first_step": 0.01, "ifactor": 2.0})
        return field

    same_steps(*both(run), 1.0, 1e-12)
    assert shapes == {torch.Size([2, 3])}


def test_tolerance_for_every_entry():
    """A tensor of tolerances: the second entry is hardly controlled, so the steps are those of the first."""

    def run(ode, tolerance):
        field = Recorder(lambda t, y: y * torch.stack([torch.cos(t), 20 * torch.cos(20 * t)]))
        ode.odeint(field, tensor(1.0, 1.0), times(0.0, 2.0, 2), rtol=tolerance, atol=tolerance)
        return field

    ours, theirs = both(lambda ode: run(ode, tensor(1e-6, 1e3)))
    same_steps(ours, theirs, 2.0)
    assert ours.calls < 0.5 * run(solvers, 1e-6).calls


def test_a_step_size_leaves_adaptive_methods_adaptive():
    """As in torchdiffeq, with a warning; fixed steps of `dopri5` are for `solve(..., controller=Fixed())`."""
    turning, end = tensor([0.0, 20.0], [-20.0, 0.0]), times(0.0, 3.0, 2)

    def run(ode):
        with pytest.warns(UserWarning, match="step_size"):
            return ode.odeint(
                lambda t, y: turning @ y, tensor(1.0, 0.0), end, method="dopri5", options={"step_size": 1.0}
            )

    ours, theirs = both(run)
    close(ours, theirs, 1e-5)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"options": {"first_stp": 0.1}}, "'first_stp' \\(did you mean 'first_step'\\?\\)"),
        ({"method": "rk4", "options": {"first_step": 1.0}}, "'rk4'.*'first_step'"),
    ],
)
@pytest.mark.parametrize("interface", INTERFACES)
def test_unknown_options_are_ignored_with_a_warning(settings, hint, interface):
    call = getattr(solvers, interface)
    extra = {} if interface == "odeint" else {"adjoint_params": ()}
    with pytest.warns(UserWarning, match=f"^options: .*{hint}"):
        found = call(wavy, tensor(0.5), times(0.0, 1.0, 2), **settings, **extra)
    plain = call(wavy, tensor(0.5), times(0.0, 1.0, 2), method=settings.get("method"), **extra)
    assert torch.equal(found, plain)


# -- Adams methods and SciPy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4, 41])
@pytest.mark.parametrize(("method", "options"), [
    ("implicit_adams", {}), ("fixed_adams", {"max_order": 5}), ("explicit_adams", {"max_order": 5}),
    ("explicit_adams", {"max_order": 4}), ("implicit_adams", {"max_iters": 40}),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Functional iteration")
def test_adams_methods_take_the_steps_of_torchdiffeq(method, options, count):
    """To the tolerance of the corrector, on grids of equal steps; on others torchdiffeq loses the order."""

    def run(ode):
        return ode.odeint(wavy, tensor(0.5, -1.0), times(0.0, 1.0, count), method=method, options=options)

    ours, theirs = both(run)
    close(ours, theirs, 2e-7 if method != "explicit_adams" else 1e-13)


@pytest.mark.parametrize(("method", "order"), [("implicit_adams", 4.5), ("explicit_adams", 3.8)])
def test_adams_methods_keep_their_order_on_any_grid(method, order):
    errors = []
    exact = solvers.odeint(wavy, tensor(0.5, -1.0), times(0.0, 2.0, 2), method="dopri8", rtol=1e-13, atol=1e-14)[-1]
    for count in (81, 161):
        s = times(0.0, 1.0, count)
        grid = 2 * (s + 0.3 * torch.sin(2 * math.pi * s) / math.pi)
        found = solvers.odeint(wavy, tensor(0.5, -1.0), grid, method=method)[-1]
        errors.append(float((found - exact).abs().max()))
    assert math.log2(errors[0] / errors[1]) > order, errors


@pytest.mark.parametrize("solver", ["LSODA", "RK45", "Radau"])
@pytest.mark.parametrize("sign", [1, -1], ids=["increasing", "decreasing"])
def test_scipy_solver(solver, sign):
    settings = {"method": "scipy_solver", "options": {"solver": solver}, "rtol": 1e-8, "atol": 1e-10}
    field = Field()
    with torch.no_grad():
        found = solvers.odeint(field, tensor(0.5, -1.0), sign * times(0.0, 1.0, 4), **settings)
    exact = solvers.odeint(field, tensor(0.5, -1.0), sign * times(0.0, 1.0, 4), rtol=1e-11, atol=1e-12)
    close(found, exact.detach(), 1e-6)
    with pytest.warns(UserWarning, match="records no gradients"):
        assert not solvers.odeint(field, tensor(0.5, -1.0), times(0.0, 1.0, 2), **settings).requires_grad
    states = solvers.odeint_adjoint(field, tensor(0.5, -1.0), sign * times(0.0, 1.0, 4), **settings)
    ours = torch.autograd.grad(states[-1].sum(), field.weight)[0]
    close(ours, torch.autograd.grad(exact[-1].sum(), field.weight)[0], 1e-6)
    with pytest.raises(ValueError, match="one system"):
        solvers.odeint(wavy, torch.ones(2, 1), times(0.0, 1.0, 2), method="scipy_solver", systems=Rows())


# -- fields in another precision --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_field_in_another_precision_is_cast(method, dtype):
    def run(ode):
        return ode.odeint(
            lambda t, y: -y.to(dtype), tensor(0.5, -1.0), times(0.0, 1.0, 3), method=method, rtol=1e-2, atol=1e-2
        )

    ours, theirs = both(run)
    close(ours, theirs, 20 * torch.finfo(dtype).eps if method == "rk4" else 2e-2)
    assert ours.dtype == torch.float64


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_field_under_autocast(interface):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    field = PlainField(network)
    y0 = torch.ones(2, 3)
    ode, settings = getattr(solvers, interface), {"method": "rk4", "options": {"step_size": 0.25}}
    exact = ode(field, y0, times(0.0, 1.0, 2), **settings)[-1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ode(field, y0, times(0.0, 1.0, 2), **settings)[-1]
    assert found.dtype == torch.float32
    close(found, exact, 2e-2)
    found.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters())


class PlainField(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, t, y):
        return self.network(y)


# -- states that are tuples -------------------------------------------------------------------------------------

PARTS = (torch.full((2, 3), 0.4, dtype=torch.float64), tensor(1.0)[0], tensor(0.2, -0.3, 0.1, 0.5))


def coupled(t, y):
    matrix, scalar, vector = y
    return -matrix * scalar, vector.sum() - scalar * torch.cos(t), -vector + matrix.mean()


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_tuples(method, span, interface):
    settings = {} if interface == "odeint" else {"adjoint_params": ()}

    def run(ode):
        return getattr(ode, interface)(coupled, PARTS, times(*span, 4), method=method, **settings)

    ours, theirs = both(run)
    assert isinstance(ours, tuple)
    assert [part.shape for part in ours] == [(4, *part.shape) for part in PARTS]
    for our, their in zip(ours, theirs, strict=True):
        close(our, their, 1e-6 if method == "dopri5" else 1e-13)


def test_tuple_of_one():
    (ours,), (theirs,) = both(lambda ode: ode.odeint(lambda t, y: (-y[0],), (tensor(1.0),), times(0, 1, 3)))
    close(ours, theirs, 1e-7)


TUPLE_OPTIONS = {
    "default norm": {},
    "tolerances": {"rtol": (1e-3, 1e-6, 1e-4), "atol": (1e-3, 1e-8, 1e-5)},
    "tolerances, tensors": {"rtol": (1e-3, tensor(1e-6)[0], 1e-4), "atol": tensor(1e-3, 1e-8, 1e-5)},
    "norm": {"options": {"norm": lambda y: y[1].abs().reshape(())}},
    "norm and tolerances": {"rtol": (1e-3, 1e-6, 1e-4), "options": {"norm": lambda y: y[0].abs().max()}},
}


@pytest.mark.parametrize("case", TUPLE_OPTIONS)
def test_tolerances_and_norms_of_tuples(case):
    """A tolerance for each part, and a norm of the parts: they choose the steps that torchdiffeq takes."""

    def run(ode):
        field = Recorder(coupled)
        ode.odeint(field, PARTS, times(0.0, 5.0, 2), **{"rtol": 1e-6, "atol": 1e-6} | TUPLE_OPTIONS[case])
        return field

    same_steps(*both(run), 5.0)


def test_grid_constructor_and_step_size_with_tuples():
    for options in ({"step_size": 0.3}, {"grid_constructor": lambda func, y0, t: times(t[0], t[-1], 9)}):
        ours, theirs = both(
            lambda ode, options=options: ode.odeint(coupled, PARTS, times(0, 1, 4), method="rk4", options=options)
        )
        same(ours, theirs)


# -- gradients --------------------------------------------------------------------------------------------------


def gradients(ode, interface, y0, t, **settings):
    """The states, and gradients to the first state, the times and the parameters."""
    field = Field(y0.dtype)
    y0, t = y0.clone().requires_grad_(), t.clone().requires_grad_()
    states = getattr(ode, interface)(field, y0, t, **settings)
    weights = torch.linspace(0.5, 1.5, states.numel(), dtype=states.dtype).reshape(states.shape)
    return torch.autograd.grad((weights * states).sum(), (y0, t, *field.parameters()))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("options", [{}, {"step_size": 0.12}, {"step_size": 0.12, "interp": "cubic"}], ids=str)
@pytest.mark.parametrize("method", FIXED)
def test_gradients_of_fixed_steps_equal_those_of_torchdiffeq(method, options, span, interface):
    ours, theirs = both(
        lambda ode: gradients(ode, interface, tensor(0.5, -1.0), times(*span, 4), method=method, options=options)
    )
    same(ours, theirs)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_gradients_of_adaptive_methods_agree_with_torchdiffeq(method, span, interface):
    rtol = 1e-6 if method == "bosh3" else 1e-8
    settings = {"method": method, "rtol": rtol, "atol": rtol / 100}
    ours = gradients(solvers, interface, tensor(0.5, -1.0), times(*span, 4), **settings)
    exact = gradients(torchdiffeq, "odeint", tensor(0.5, -1.0), times(*span, 4), rtol=1e-10, atol=1e-10)
    for our, their in zip(ours, exact, strict=True):
        close(our, their, 100 * rtol if method == "bosh3" else 1e-5)


# The steps do not depend on the state, and no time lies at the end of one, where the solution has a kink.
PINNED = {"min_step": 0.17, "max_step": 0.17, "first_step": 0.17}


DIFFERENTIATED = {  # method and options
    **{method: (method, {"step_size": 0.4}) for method in FIXED},
    "cubic": ("rk4", {"step_size": 0.4, "interp": "cubic"}),
    "steps of t": ("rk4", {}),
    "grid_constructor": (
        "euler",
        {"grid_constructor": lambda func, y0, t: torch.cat([t[:1], t[:-1] + 0.3 * t.diff(), t[-1:]])},
    ),
    **{method: (method, PINNED) for method in ADAPTIVE},
}


@pytest.mark.parametrize("span", [(0.1, 1.0), (1.0, 0.1)], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("case", DIFFERENTIATED)
def test_gradcheck(case, span):
    """In the first state, the times and a parameter."""
    method, options = DIFFERENTIATED[case]

    def run(y0, t, rate):
        return solvers.odeint(
            lambda t, y: torch.sin(rate * t) - rate * y * y.flip(0), y0, t, method=method, options=options
        )

    inputs = (tensor(0.5, 0.8), times(*span, 3), tensor(0.9))
    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in inputs])


def test_gradcheck_of_complex_states_and_tuples():
    def run(y0, scale, t):
        def field(t, y):
            return (1j * scale - 0.2) * y[0] * t, y[1] * scale

        return solvers.odeint(field, (y0, scale), t, method="rk4", options={"step_size": 0.4})

    y0 = torch.tensor([0.5 + 0.2j, -0.3j], dtype=torch.complex128)
    inputs = (y0, torch.tensor(0.7 + 0j, dtype=torch.complex128), times(0.0, 1.0, 3))
    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in inputs])


def test_second_derivatives():
    def run(y0, t):
        return solvers.odeint(lambda t, y: -(y**2) * t, y0, t, options=PINNED)

    assert torch.autograd.gradgradcheck(run, [tensor(0.5, requires_grad=True), times(0, 1, 3).requires_grad_()])


def test_gradient_to_a_time_on_the_grid():
    """A saved time that happens to be a grid point still moves the output."""
    t = times(0.0, 1.0, 5).requires_grad_()
    states = solvers.odeint(lambda t, y: -y, tensor(1.0), t, method="rk4", options={"step_size": 0.125})
    (by_t,) = torch.autograd.grad(states[2, 0], t)
    slope = (math.exp(-0.5) - math.exp(-0.375)) / 0.125  # of the linear interpolant
    assert float(by_t[2]) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_output_requires_gradient_only_if_an_input_does(interface, method):
    for wanted in (True, False):
        field = Field().requires_grad_(wanted)
        states = getattr(solvers, interface)(field, tensor(0.5, 1.0), times(0.0, 1.0, 3), method=method)
        assert states.requires_grad == wanted


# -- odeint_adjoint ---------------------------------------------------------------------------------------------


def backward_calls(ode, **settings):
    """Evaluations in the backward solve, and the gradients to the parameters."""
    field = Field()
    settings = {"rtol": 1e-5, "atol": 1e-8} | settings
    states = ode.odeint_adjoint(field, tensor(0.5, -1.0), times(0.0, 1.5, 3), **settings)
    forward = field.calls
    found = torch.autograd.grad(states[1:].square().sum(), list(field.parameters()))
    return field.calls - forward, torch.cat([x.reshape(-1) for x in found])


ADJOINT_SETTINGS = {
    "default": {},
    "tolerances": {"adjoint_rtol": 1e-3, "adjoint_atol": 1e-4},
    "tight tolerances": {"rtol": 1e-3, "atol": 1e-3, "adjoint_rtol": 1e-6, "adjoint_atol": 1e-7},
    "forward tolerances": {"rtol": 1e-3, "atol": 1e-5},
    "method": {"adjoint_method": "bosh3"},
    "fixed method": {"adjoint_method": "rk4", "adjoint_options": {"step_size": 0.1}},
    "fixed forward": {
        "method": "rk4",
        "options": {"step_size": 0.1},
        "adjoint_method": "dopri5",
        "adjoint_options": {},
    },
    "all fixed": {"method": "midpoint", "options": {"step_size": 0.1}},
    "options": {"options": {"max_step": 0.05}},
    "own options": {"options": {"max_step": 0.05}, "adjoint_options": {}},
    "seminorm": {"adjoint_options": {"norm": "seminorm"}},
    "norm": {"adjoint_options": {"norm": lambda parts: parts[1].abs().max()}},
    "forward norm": {"options": {"norm": lambda y: y.abs().max()}},
    "forward norm, seminorm": {
        "options": {"norm": lambda y: y.abs().max()},
        "adjoint_options": {"norm": "seminorm"},
    },
}


@pytest.mark.parametrize("case", ADJOINT_SETTINGS)
def test_adjoint_settings(case):
    """The backward solve costs what it costs with torchdiffeq, and gives its gradients."""
    settings = ADJOINT_SETTINGS[case]
    (our_calls, ours), (their_calls, theirs) = both(lambda ode: backward_calls(ode, **settings))
    assert 0.5 * their_calls <= our_calls <= 1.05 * their_calls  # ours leaves out the cotangent of time where it may
    loosest = max(settings.get(name, 1e-5) for name in ("rtol", "adjoint_rtol"))
    close(ours, theirs, (50 if case == "method" else 20) * loosest)  # torchdiffeq's interpolant of bosh3


def test_adjoint_settings_have_an_effect():
    calls = {case: backward_calls(solvers, **settings)[0] for case, settings in ADJOINT_SETTINGS.items()}
    plain = calls["default"]
    assert calls["tolerances"] < plain
    assert calls["forward tolerances"] < plain
    assert calls["method"] != plain
    assert calls["options"] > plain
    assert calls["own options"] == pytest.approx(plain, rel=0.1)
    assert calls["seminorm"] < plain
    assert calls["norm"] < plain


@pytest.mark.parametrize("parts", [False, True], ids=["tensor", "tuple"])
def test_adjoint_norm_is_given_the_parts(parts):
    """The cotangent of time, the state, its cotangent and those of the parameters, as torchdiffeq passes them."""
    y0 = (tensor(0.5, -1.0), tensor(0.1)) if parts else tensor(0.5, -1.0)

    def run(ode):
        shapes = set()

        def norm(given):
            shapes.add(tuple(part.shape for part in given))
            return given[1].abs().max()

        field = Field()
        func = PartsField(field) if parts else field
        states = ode.odeint_adjoint(func, y0, times(0.0, 1.0, 2), adjoint_options={"norm": norm})
        (states[0] if parts else states).sum().backward()
        return shapes, field.weight.grad

    (our_shapes, ours), (their_shapes, theirs) = both(run)
    assert our_shapes == their_shapes
    assert len(our_shapes) == 1
    close(ours, theirs, 1e-6)


class PartsField(nn.Module):
    """A tuple state: the second part sums up the first."""

    def __init__(self, field):
        super().__init__()
        self.field = field

    def forward(self, t, y):
        velocity = self.field(t, y[0])
        return velocity, y[0].sum().reshape(1) - y[1]


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("settings", [{}, {"method": "rk4", "options": {"step_size": 0.1}}], ids=["dopri5", "rk4"])
def test_adjoint_of_tuples(span, settings):
    def run(ode):
        func = PartsField(Field())
        y0, t = (tensor(0.5, -1.0, requires_grad=True), tensor(0.1, requires_grad=True)), times(*span, 3)
        t.requires_grad_()
        first, second = ode.odeint_adjoint(func, y0, t, **settings)
        return torch.autograd.grad((first.prod() + second.square().sum()), (*y0, t, *func.parameters()))

    for our, their in zip(*both(run), strict=True):
        close(our, their, 1e-12 if settings else 1e-6)


def test_adjoint_with_tolerances_for_each_part():
    """torchdiffeq takes a tuple of tolerances forward only; here it is enough to change the import."""
    y0 = (tensor(0.5, -1.0, requires_grad=True), tensor(0.1))
    first, _ = solvers.odeint_adjoint(PartsField(Field()), y0, times(0, 1, 2), rtol=(1e-7, 1e-3), atol=(1e-8, 1e-3))
    exact, _ = torchdiffeq.odeint(PartsField(Field()), y0, times(0.0, 1.0, 2))
    ours, theirs = (torch.autograd.grad(states[-1].sum(), y0[0])[0] for states in (first, exact))
    close(ours, theirs, 1e-6)


@LIBRARIES
def test_adjoint_params(ode):
    """Only the named tensors get gradients; others are constants."""
    rate, other = tensor(0.7, requires_grad=True), tensor(0.2, requires_grad=True)
    y0 = tensor(1.0, requires_grad=True)

    def run(params):
        return ode.odeint_adjoint(lambda t, y: -rate * y + other, y0, times(0.0, 1.0, 2), adjoint_params=params)[-1]

    by_rate, by_y0 = torch.autograd.grad(run(x for x in [rate]), (rate, y0))
    close(by_y0, torch.exp(-rate), 1e-6)
    fall = other / rate
    exact = torch.autograd.grad(((1 - fall) * torch.exp(-rate) + fall).sum(), rate)[0]
    close(by_rate, exact, 1e-6)
    assert torch.autograd.grad(run((rate,)), other, allow_unused=True) == (None,)
    (by_y0,) = torch.autograd.grad(run(()), y0)
    close(by_y0, torch.exp(-rate), 1e-6)
    frozen = tensor(5.0)
    (by_rate,) = torch.autograd.grad(run((rate, frozen)), rate)
    close(by_rate, exact, 1e-6)


@LIBRARIES
def test_adjoint_params_may_be_used_through_what_was_computed_from_them(ode):
    rate = tensor(-0.4, requires_grad=True)
    computed = rate.exp()
    y1 = ode.odeint_adjoint(lambda t, y: -computed * y, tensor(1.0), times(0.0, 1.0, 2), adjoint_params=(rate,))[-1]
    (by_rate,) = torch.autograd.grad(y1, rate)
    exact = torch.autograd.grad(torch.exp(-rate.exp()), rate)[0]
    close(by_rate, exact, 1e-6)


@LIBRARIES
def test_adjoint_needs_to_know_the_parameters(ode):
    with pytest.raises(ValueError, match="adjoint_params"):
        ode.odeint_adjoint(wavy, tensor(1.0), times(0.0, 1.0, 2))


@LIBRARIES
def test_adjoint_options_cannot_be_guessed_for_another_method(ode):
    settings = {"method": "rk4", "options": {"step_size": 0.1}, "adjoint_method": "dopri5"}
    with pytest.raises(ValueError, match="adjoint_options"):
        ode.odeint_adjoint(Field(), tensor(1.0, 1.0), times(0.0, 1.0, 2), **settings)


def test_adjoint_leaves_the_given_options_alone():
    options, adjoint_options = {"max_step": 0.5}, {"norm": "seminorm"}
    solvers.odeint_adjoint(
        Field(), tensor(1.0, 1.0), times(0.0, 1.0, 2), options=options, adjoint_options=adjoint_options
    )
    assert (options, adjoint_options) == ({"max_step": 0.5}, {"norm": "seminorm"})


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_adjoint_in_every_precision(dtype):
    """Gradients to a real parameter and to the state: against backpropagation through the steps."""

    class Turning(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(0.7, dtype=dtype.to_real()))

        def forward(self, t, y):
            return (1j if dtype.is_complex else -1) * self.rate * y * (1 + t)

    y0 = torch.tensor([0.5, -1.0]).to(dtype) * (1 + 0.5j if dtype.is_complex else 1)

    def run(interface):
        field, y, t = Turning(), y0.clone().requires_grad_(), times(0, 1, 3, dtype.to_real()).requires_grad_()
        states = getattr(solvers, interface)(field, y, t, rtol=1e-6, atol=1e-7)
        loss = (states - (0.3 - 0.1j if dtype.is_complex else 0.3)).abs().square().sum()
        return torch.autograd.grad(loss, (y, t, field.rate))

    for adjoint, direct in zip(run("odeint_adjoint"), run("odeint"), strict=True):
        assert adjoint.dtype == direct.dtype
        close(adjoint, direct, 1e-4)


class Jumping(nn.Module):
    """Growth until 0.3, then decay at twice the rate, in the direction of `sign`."""

    def __init__(self, sign):
        super().__init__()
        self.rate = nn.Parameter(tensor(0.5))
        self.sign = sign
        self.calls = 0

    def forward(self, t, y):
        self.calls += 1
        return self.sign * torch.where(self.sign * t < 0.3, 1.0, -2.0) * self.rate * y


@pytest.mark.parametrize("sign", [1, -1], ids=["increasing", "decreasing"])
def test_backward_solve_knows_the_jumps_too(sign):
    field = Jumping(sign)
    options = {"jump_t": sign * tensor(0.3)}
    states = solvers.odeint_adjoint(field, tensor(1.0), sign * times(0.0, 1.0, 2), options=options)
    forward = field.calls
    states[-1].sum().backward()
    close(field.rate.grad, -1.1 * torch.exp(-1.1 * field.rate.detach()), 1e-6)
    assert field.calls - forward < 1.5 * forward


# -- events -----------------------------------------------------------------------------------------------------


class Ball(nn.Module):
    """A ball thrown upward from height y[0] with velocity y[1]; its path is a parabola."""

    def __init__(self, parts=False):
        super().__init__()
        self.gravity = nn.Parameter(tensor(9.81)[0])
        self.parts = parts

    def forward(self, t, y):
        _height, velocity = y
        fall = -self.gravity * torch.ones_like(velocity)
        return (velocity, fall) if self.parts else torch.stack([velocity, fall])

    def lands(self, t0, y0, reverse=False):
        """Time and velocity of the landing, in closed form."""
        height, velocity = y0
        root = torch.sqrt(velocity**2 + 2 * self.gravity * height) * (-1 if reverse else 1)
        return t0 + (velocity + root) / self.gravity, -root


def height(t, y):
    return y[0]


EVENT_METHODS = {
    "dopri5": {},
    "dopri8": {"method": "dopri8"},
    "rk4": {"method": "rk4", "options": {"step_size": 0.05, "interp": "cubic"}},
}


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("parts", [False, True], ids=["tensor", "tuple"])
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("method", EVENT_METHODS)
def test_time_and_state_of_an_event(method, interface, parts, reverse):
    """And their gradients to the first state, the start and the parameters, all against the closed form."""
    ball = Ball(parts)
    t0 = tensor(0.4, requires_grad=True)[0]
    y0 = (tensor(1.5, requires_grad=True)[0], tensor(2.0, requires_grad=True)[0])
    event_t, states = solvers.odeint_event(
        ball,
        y0 if parts else torch.stack(y0),
        t0,
        event_fn=height,
        reverse_time=reverse,
        odeint_interface=getattr(solvers, interface),
        **EVENT_METHODS[method],
    )
    exact_t, exact_velocity = ball.lands(t0, y0, reverse)
    velocity = states[1][-1] if parts else states[-1][1]
    assert event_t.shape == ()
    assert [len(part) for part in states] == [2, 2]
    close(event_t, exact_t, 1e-8)
    close(velocity, exact_velocity, 1e-7)
    same(states[0][0] if parts else states[0], y0[0] if parts else torch.stack(y0))

    inputs = (*y0, t0, ball.gravity)
    for found, exact in (
        (event_t, exact_t),
        (velocity, exact_velocity),
        (event_t * velocity, exact_t * exact_velocity),
    ):
        ours, theirs = (
            torch.autograd.grad(x, inputs, retain_graph=True, materialize_grads=True) for x in (found, exact)
        )
        close(torch.stack(ours), torch.stack(theirs), 1e-6)
    landed = states[0][-1] if parts else states[-1][0]
    ours = torch.autograd.grad(landed, inputs, materialize_grads=True)  # stays on the ground, whatever the throw
    close(torch.stack(ours), torch.zeros(4, dtype=torch.float64), 1e-6)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("method", [*EVENT_METHODS, "euler"])
def test_events_agree_with_torchdiffeq(method, reverse, interface):
    """On a field that depends on time, with an event that does."""
    settings = EVENT_METHODS.get(method, {"method": method, "options": {"step_size": 0.1}})

    def run(ode):
        field, y0, t0 = Field(), tensor(0.5, -1.0, requires_grad=True), tensor(0.3, requires_grad=True)
        event_t, states = ode.odeint_event(
            field,
            y0,
            t0,
            event_fn=lambda t, y: y[0] - 0.2 * torch.cos(t),
            reverse_time=reverse,
            odeint_interface=getattr(ode, interface),
            **settings,
        )
        by = torch.autograd.grad(event_t + states[-1].prod(), (y0, *field.parameters()))
        return event_t, states, *by

    (our_t, ours, *our_gradients), (their_t, theirs, *their_gradients) = both(run)
    assert our_t.shape == their_t.shape
    assert our_t.dtype == their_t.dtype
    within = 1e-4 if method == "dopri8" else 2e-7  # torchdiffeq's interpolant of dopri8
    close(our_t, their_t, within)
    close(ours, theirs, within)
    for our, their in zip(our_gradients, their_gradients, strict=True):
        close(our, their, 10 * within)


def first_of_three(t, y):
    return torch.stack([y[0] - 10, 1 - y[0], t - 3])


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    ("start", "expected"), [(2.0, math.log(2.0)), (9.0, math.log(9.0)), (90.0, 3.0), (11.0, math.log(1.1))]
)
def test_the_first_of_several_events_counts(interface, start, expected):
    """Whatever the signs at the start: decay from 2 and from 9 reaches 1, from 11 first 10, from 90 the time 3."""
    settings = {} if interface == "odeint" else {"adjoint_params": ()}

    def run(ode):
        y0 = tensor(start, requires_grad=True)
        chosen = first_of_three if start < 50 else lambda t, y: first_of_three(t, y)[1:]
        event_t, states = ode.odeint_event(
            lambda t, y: -y,
            y0,
            tensor(0.0),
            event_fn=lambda t, y: chosen(t, y).reshape(-1),
            odeint_interface=getattr(ode, interface),
            **settings,
        )
        return event_t, states[-1], torch.autograd.grad(event_t, y0, materialize_grads=True)[0]

    (our_t, ours, our_gradient), (their_t, theirs, their_gradient) = both(run)
    assert float(our_t.detach()) == pytest.approx(expected, abs=1e-7)
    close(our_t, their_t, 1e-7)
    close(ours, theirs, 1e-6)
    close(our_gradient, their_gradient, 1e-6)


@pytest.mark.parametrize("sign", [1, -1], ids=["increasing", "decreasing"])
def test_event_without_gradients(sign):
    """`odeint` itself gives the time of the event and the states at start and event."""
    event_t, states = solvers.odeint(
        lambda t, y: -sign * y, tensor(1.0), sign * tensor(0.0, 1.0), event_fn=lambda t, y: y[0] - 0.25
    )
    close(event_t, torch.tensor(sign * math.log(4.0), dtype=torch.float64), 1e-8)
    close(states, tensor([1.0], [0.25]), 1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
@pytest.mark.parametrize("interface", INTERFACES)
def test_events_in_other_precisions(dtype, interface):
    y0, t0 = torch.ones(1, dtype=dtype, requires_grad=True), torch.zeros(1, dtype=dtype.to_real())
    settings = {} if interface == "odeint" else {"adjoint_params": ()}
    event_t, states = solvers.odeint_event(
        lambda t, y: -y,
        y0,
        t0,
        event_fn=lambda t, y: y[0].abs() - 0.5,
        odeint_interface=getattr(solvers, interface),
        rtol=1e-6,
        atol=1e-6,
        **settings,
    )
    assert event_t.dtype == dtype.to_real()
    assert states.dtype == dtype
    close(event_t, torch.tensor(math.log(2.0), dtype=dtype.to_real()), 2e-6)
    (gradient,) = torch.autograd.grad(event_t, y0)
    close(gradient, torch.ones(1, dtype=dtype), 1e-4)


@pytest.mark.parametrize("interface", INTERFACES)
def test_event_at_the_start(interface):
    settings = {} if interface == "odeint" else {"adjoint_params": ()}

    def run(ode):
        return getattr(ode, interface)(
            wavy, tensor(0.5), tensor(0.3, 1.3), event_fn=lambda t, y: y[0] - 0.5, **settings
        )

    (our_t, ours), (their_t, theirs) = both(run)
    assert our_t == their_t == 0.3
    same(ours, theirs)


@pytest.mark.parametrize("settings", [{}, {"method": "euler", "options": {"step_size": 0.1}}], ids=["dopri5", "euler"])
def test_event_that_never_happens_is_an_error(settings):
    options = settings.get("options", {}) | {"max_num_steps": 40}
    with pytest.raises(SolveError, match="step limit"):
        solvers.odeint_event(
            wavy, tensor(0.5), tensor(0.0), event_fn=lambda t, y: y[0] + 100, **settings | {"options": options}
        )


@pytest.mark.parametrize(("name", "change"), [("step_t", 1.0), ("jump_t", 3.0)])
@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "reverse"])
def test_steps_end_at_the_given_times_before_an_event(name, change, sign):
    """However late they are: an event has no end time."""

    def falling(t, y):
        return -sign * torch.where(sign * t < 2.5, 1.0, change) * torch.ones_like(y)

    def run(ode):
        field = Recorder(falling)
        options = {name: sign * tensor(0.5, 2.5)}
        settings = {"event_fn": height, "reverse_time": sign < 0, "options": options}
        return ode.odeint_event(field, tensor(4.0), tensor(0.0), **settings)[0], field

    (our_t, our_field), (_, their_field) = both(run)
    close(our_t, torch.tensor(sign * (2.5 + 1.5 / change), dtype=torch.float64), 1e-8)
    assert {0.5 * sign, 2.5 * sign} <= {start for start, _ in our_field.steps("accept")}
    assert our_field.calls <= 1.05 * their_field.calls


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("interface", INTERFACES)
def test_events_where_no_gradients_are_recorded(mode, interface):
    settings = {} if interface == "odeint" else {"adjoint_params": ()}
    with mode():
        event_t, states = solvers.odeint_event(
            lambda t, y: -y,
            tensor(1.0),
            tensor(0.0),
            event_fn=lambda t, y: y[0] - 0.5,
            odeint_interface=getattr(solvers, interface),
            **settings,
        )
    close(event_t, torch.tensor(math.log(2.0), dtype=torch.float64), 1e-8)
    close(states[-1], tensor(0.5), 1e-8)


@LIBRARIES
def test_event_function_without_gradient(ode):
    """It still gives time and state of the event; and an event in time alone has gradients of the state."""
    y0 = tensor(1.0, requires_grad=True)
    event_t, _ = ode.odeint_event(lambda t, y: -y, y0, tensor(0.0), event_fn=torch.no_grad()(lambda t, y: y[0] - 0.5))
    close(event_t.detach(), torch.tensor(math.log(2.0), dtype=torch.float64), 1e-8)
    event_t, states = ode.odeint_event(lambda t, y: -y, y0, tensor(0.0), event_fn=lambda t, y: t - 2.0)
    (gradient,) = torch.autograd.grad(event_t + states[-1].sum(), y0)
    close(gradient, tensor(math.exp(-2.0)), 1e-7)


def test_event_gradient_to_its_own_parameters():
    """A level that moves: later, the lower it is."""
    level = tensor(0.5, requires_grad=True)
    event_t, _ = solvers.odeint_event(lambda t, y: -y, tensor(1.0), tensor(0.0), event_fn=lambda t, y: y[0] - level[0])
    (gradient,) = torch.autograd.grad(event_t, level)
    close(gradient, tensor(-2.0), 1e-6)


@pytest.mark.parametrize("interface", INTERFACES)
def test_the_time_of_an_event_has_a_gradient(interface):
    """torchdiffeq's has one from `odeint_event` alone; the states are those at a fixed time, as there."""
    rate = nn.Parameter(tensor(0.8))
    y0 = tensor(1.0, requires_grad=True)

    class Decay(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = rate

        def forward(self, t, y):
            return -self.rate * y

    ode = getattr(solvers, interface)
    event_t, states = ode(Decay(), y0, times(0.0, 1.0, 2), event_fn=lambda t, y: y[0] - 0.5)
    exact = (torch.log(2 * y0) / rate).reshape(())
    close(event_t, exact, 1e-7)
    for ours, theirs in zip(torch.autograd.grad(event_t, (y0, rate), retain_graph=True),
                            torch.autograd.grad(exact, (y0, rate)), strict=True):  # fmt: skip
        close(ours, theirs, 1e-6)
    (by_y0,) = torch.autograd.grad(states[-1].sum(), y0)
    close(by_y0, tensor(0.5), 1e-6)


# -- callbacks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_callbacks_are_told_time_state_and_step(method, sign):
    """The time of the caller, and a step size that is positive in either direction."""
    options = {"first_step": 1.2} if method == "dopri5" else {"step_size": 0.3}

    def run(ode):
        field = Recorder(wavy)
        settings = {"method": method, "options": options, "rtol": 1e-4, "atol": 1e-4}
        ode.odeint(field, tensor(0.5, -1.0), sign * times(0.0, 2.0, 2), **settings)
        return field

    ours, theirs = both(run)
    if method == "rk4":
        ours.told["accept"], theirs.told["accept"] = ours.told["step"], theirs.told["step"]
    same_steps(ours, theirs, 2.0 * sign)
    assert ours.told_before(2.0 * sign)["reject"] or method == "rk4"
    assert min(dt for _, _, dt in ours.told["step"]) > 0


@pytest.mark.parametrize("interface", INTERFACES)
def test_callbacks_that_are_never_called_are_named(interface):
    settings = {"method": "rk4", "options": {"step_size": 0.5}}
    extra = {} if interface == "odeint" else {"adjoint_params": ()}
    field = Recorder(wavy)
    with pytest.warns(UserWarning, match="'rk4' does not support callbacks .*accept_step.*reject_step"):
        getattr(solvers, interface)(field, tensor(0.5), times(0.0, 1.0, 2), **settings, **extra)
    assert len(field.told["step"]) == 2
    assert not field.told["accept"]


def test_callbacks_see_the_parts_of_a_tuple():
    field = Recorder(coupled)
    solvers.odeint(field, PARTS, times(0.0, 1.0, 2))
    for kind in ("step", "accept"):
        _, y, _ = field.told[kind][0]
        same(y, PARTS)


def test_callbacks_do_not_change_the_result():
    for method in ("rk4", "dopri5"):
        settings = {"method": method, "options": {"step_size": 0.1} if method == "rk4" else None}
        plain = solvers.odeint(wavy, tensor(0.5), times(0.0, 1.0, 4), **settings)
        watched = solvers.odeint(Recorder(wavy), tensor(0.5), times(0.0, 1.0, 4), **settings)
        close(watched, plain, 1e-14)


@LIBRARIES
@pytest.mark.parametrize("settings", [{}, {"method": "rk4", "options": {"step_size": 0.25}}], ids=["dopri5", "rk4"])
def test_callbacks_of_the_backward_solve(ode, settings):
    """Those whose names end in `_adjoint`; the others are for the forward solve alone."""
    field, told = Field(), {"forward": [], "backward": []}
    field.callback_step = lambda t, y, dt: told["forward"].append((float(t), float(dt)))
    field.callback_step_adjoint = lambda t, y, dt: told["backward"].append((float(t), float(dt)))
    states = ode.odeint_adjoint(field, tensor(0.5, -1.0), times(0.0, 1.0, 2), **settings)
    assert told["forward"][0][0] == 0.0
    forward = len(told["forward"])
    assert not told["backward"]
    states[-1].sum().backward()
    assert len(told["forward"]) == forward
    assert told["backward"][0][0] == 1.0


# -- beyond torchdiffeq: args and systems -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
@pytest.mark.parametrize("args", [2.0, (1.5, 0.5), {"rate": 2.0}], ids=str)
def test_args_are_passed_on(method, args):
    given = []

    def field(t, y, args):
        given.append(args)
        return -2.0 * y

    states = solvers.odeint(field, tensor(1.0), times(0.0, 1.0, 5), method=method, args=args)
    close(states[-1], tensor(math.exp(-2.0)), 1e-3 if method == "rk4" else 1e-7)
    assert all(x is args for x in given)


def test_args_get_gradients():
    rate = tensor(0.7, requires_grad=True)

    def decay(t, y, args):
        return -args[0] * y

    for interface, settings in (("odeint", {}), ("odeint_adjoint", {"adjoint_params": (rate,)})):
        states = getattr(solvers, interface)(decay, tensor(1.0), times(0.0, 1.0, 2), args=(rate,), **settings)
        close(torch.autograd.grad(states[-1], rate)[0], -torch.exp(-rate), 1e-6)
        event_t, _ = solvers.odeint_event(
            decay,
            tensor(1.0),
            tensor(0.0),
            event_fn=lambda t, y: y[0] - 0.5,
            odeint_interface=getattr(solvers, interface),
            args=(rate,),
            **settings,
        )
        close(torch.autograd.grad(event_t, rate)[0], -math.log(2.0) / rate**2, 1e-6)


RATES = tensor([1.0], [7.0], [40.0])


def per_row(t, y):
    """Rows of different stiffness; with many systems, time comes as one value per row."""
    rates = RATES[: len(y)]
    return rates * (torch.cos(t) - y)


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.8)], ids=["increasing", "decreasing"])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_rows_step_on_their_own(method, span):
    """Each row equals its solo run bit for bit, and torchdiffeq's to the tolerance."""
    y0 = tensor([0.0, 2.0], [0.1, 1.0], [0.5, 0.2])
    settings = {"method": method, "rtol": 1e-5, "atol": 1e-7}
    together = solvers.odeint(per_row, y0, times(*span, 4), systems=Rows(), **settings)
    for i in range(3):

        def alone(t, y, i=i):
            return RATES[i] * (torch.cos(t) - y)

        solo = solvers.odeint(alone, y0[i : i + 1], times(*span, 4), systems=Rows(), **settings)
        assert torch.equal(together[:, i : i + 1], solo)
        exact = torchdiffeq.odeint(alone, y0[i : i + 1], times(*span, 4), rtol=1e-7, atol=1e-8)
        close(solo, exact, 2e-4)


@pytest.mark.parametrize("options", [{}, {"step_size": 0.03}, {"step_size": 0.03, "interp": "cubic"}], ids=str)
@pytest.mark.parametrize("method", FIXED)
def test_rows_of_fixed_steps_equal_torchdiffeq(method, options):
    y0 = tensor([0.0, 2.0], [0.1, 1.0], [0.5, 0.2])
    ours = solvers.odeint(per_row, y0, times(0.0, 0.2, 5), systems=Rows(), method=method, options=options)
    same(ours, torchdiffeq.odeint(per_row, y0, times(0.0, 0.2, 5), method=method, options=options))


def test_rows_of_a_tuple():
    def field(t, y):
        return per_row(t, y[0]), -y[1] * t

    y0 = (tensor([0.0, 2.0], [0.1, 1.0], [0.5, 0.2]), tensor([1.0], [2.0], [3.0]))
    ours = solvers.odeint(field, y0, times(0.0, 1.0, 3), systems=Rows(), rtol=1e-6, atol=1e-8)
    theirs = torchdiffeq.odeint(field, y0, times(0.0, 1.0, 3), rtol=1e-8, atol=1e-8)
    for our, their in zip(ours, theirs, strict=True):
        close(our, their, 1e-5)


def test_rows_have_events_of_their_own():
    y0 = tensor([2.0], [4.0], [0.5], requires_grad=True)
    event_t, states = solvers.odeint_event(
        lambda t, y: -y, y0, tensor(0.0), event_fn=lambda t, y: y[:, 0] - 0.25, systems=Rows()
    )
    close(event_t, torch.log(4 * y0[:, 0]), 1e-7)
    close(states[-1], torch.full_like(y0, 0.25), 1e-7)
    close(torch.autograd.grad(event_t.sum(), y0)[0], 1 / y0, 1e-6)


def test_rows_under_the_adjoint():
    def run(interface):
        field, y0 = Field(), tensor([0.5, -1.0], [2.0, 0.1], requires_grad=True)
        states = getattr(solvers, interface)(field, y0, times(0.0, 1.0, 3), systems=Rows(), rtol=1e-8, atol=1e-9)
        return torch.autograd.grad(states.square().sum(), (y0, *field.parameters()))

    for adjoint, direct in zip(run("odeint_adjoint"), run("odeint"), strict=True):
        close(adjoint, direct, 1e-6)


# -- fields that are gradients (torchdiffeq's issues 151, 154, 209 and 226) -------------------------------------


class Descent(nn.Module):
    """Steepest descent of V = stiffness |y|^2 / 2, with the gradient taken by autograd: y = exp(-stiffness t)."""

    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(tensor(0.8)[0])

    def forward(self, t, y):
        with torch.enable_grad():
            y = y if y.requires_grad else y.detach().requires_grad_()
            energy = self.stiffness * y.square().sum() / 2
            (gradient,) = torch.autograd.grad(energy, y, create_graph=True)
        return -gradient


@LIBRARIES
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("settings", [{}, {"method": "rk4", "options": {"step_size": 0.02}}], ids=["dopri5", "rk4"])
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad])
def test_field_that_is_a_gradient(ode, interface, settings, mode):
    field, t = Descent(), times(0.0, 1.0, 3)
    y0 = tensor(1.0, -2.0, requires_grad=True)
    with mode():
        states = getattr(ode, interface)(field, y0, t, **settings)
    close(states, torch.exp(-field.stiffness.detach() * t)[:, None] * y0.detach(), 1e-7)
    assert states.requires_grad == (mode is not torch.no_grad)
    if states.requires_grad:
        by_y0, by_stiffness = torch.autograd.grad(states[-1].sum(), (y0, field.stiffness))
        close(by_y0, torch.exp(-field.stiffness).expand(2), 1e-6)
        close(by_stiffness, -torch.exp(-field.stiffness) * y0.sum(), 1e-6)


@pytest.mark.parametrize("interface", INTERFACES)
def test_event_of_a_field_that_is_a_gradient(interface):
    field, y0 = Descent(), tensor(1.0, requires_grad=True)
    event_t, _ = solvers.odeint_event(
        field, y0, tensor(0.0), event_fn=lambda t, y: y[0] - 0.5, odeint_interface=getattr(solvers, interface)
    )
    by_y0, by_stiffness = torch.autograd.grad(event_t, (y0, field.stiffness))
    close(by_y0, 1 / field.stiffness.reshape(1), 1e-6)
    close(by_stiffness, -math.log(2.0) / field.stiffness**2, 1e-6)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_inference_mode(interface, method):
    with torch.inference_mode():
        states = getattr(solvers, interface)(Field(), tensor(0.5, 1.0), times(0.0, 1.0, 3), method=method)
    same(states, getattr(solvers, interface)(Field(), tensor(0.5, 1.0), times(0.0, 1.0, 3), method=method).detach())


# -- wrong input ------------------------------------------------------------------------------------------------

ERRORS = {  # the arguments that differ from a valid call, the kind of error, what its message must name
    "t: a list": ({"t": [0.0, 1.0]}, TypeError, r"^t must be a tensor"),
    "t: integers": ({"t": torch.tensor([0, 1])}, TypeError, r"^t must be .*floating"),
    "t: complex": ({"t": torch.tensor([0.0, 1.0], dtype=torch.complex64)}, TypeError, r"^t must be .*floating"),
    "t: two dimensions": ({"t": torch.zeros(1, 2)}, ValueError, r"^t must be one-dimensional"),
    "t: a scalar": ({"t": torch.tensor(0.0)}, ValueError, r"^t must be one-dimensional"),
    "t: empty": ({"t": torch.zeros(0)}, ValueError, r"^t must be .*not empty"),
    "t: repeated": ({"t": tensor(0.0, 0.5, 0.5, 1.0)}, ValueError, r"^t must be strictly .*repeated"),
    "t: repeated, decreasing": ({"t": tensor(1.0, 1.0, 0.0)}, ValueError, r"^t must be strictly .*repeated"),
    "t: turning back": ({"t": tensor(0.0, 1.0, 0.5)}, ValueError, r"^t must be strictly .*turning back"),
    "t: NaN": ({"t": tensor(0.0, math.nan)}, ValueError, r"^t must be finite"),
    "t: infinite": ({"t": tensor(0.0, math.inf)}, ValueError, r"^t must be finite"),
    "rtol: negative": ({"rtol": -1e-3}, ValueError, r"^rtol must not be negative"),
    "rtol: NaN": ({"rtol": math.nan}, ValueError, r"^rtol must not be negative \(or NaN\)"),
    "rtol: gradient": ({"rtol": tensor(1e-3, requires_grad=True)}, ValueError, r"^rtol cannot require gradient"),
    "atol: negative": ({"atol": -1e-3}, ValueError, r"^atol must not be negative"),
    "atol: negative entry": ({"atol": tensor(1e-3, -1e-3)}, ValueError, r"^atol must not be negative"),
    "tolerances: zero": ({"rtol": 0.0, "atol": 0.0}, ValueError, r"rtol and atol"),
    "method: unknown": ({"method": "dopri6"}, ValueError, r"unknown method 'dopri6'.*dopri5"),
    "method: a number": ({"method": 5}, (TypeError, ValueError), r"method"),
    "method: misspelt": ({"method": "dopry5"}, ValueError, r"unknown method 'dopry5' \(did you mean 'dopri5'\?\)"),
    "options: max_order": ({"method": "explicit_adams", "options": {"max_order": 3}}, ValueError, r"^max_order"),
    "options: max_iters": ({"method": "implicit_adams", "options": {"max_iters": 0}}, ValueError, r"^max_iters"),
    "options: interp": ({"method": "rk4", "options": {"interp": "cubical"}}, ValueError, r"^options: interp"),
    "options: step_size": ({"method": "rk4", "options": {"step_size": -0.1}}, ValueError, r"^options: step_size"),
    "options: two grids": (
        {"method": "rk4", "options": {"step_size": 0.1, "grid_constructor": lambda func, y0, t: t}},
        ValueError,
        r"^options: step_size and grid_constructor",
    ),
    "options: min_step": ({"options": {"min_step": 2.0, "max_step": 1.0}}, ValueError, r"min_step.*max_step"),
    "options: first_step": ({"options": {"first_step": -0.1}}, ValueError, r"first_step"),
    "options: max_num_steps": ({"options": {"max_num_steps": 0}}, ValueError, r"max_num_steps"),
    "options: factors": ({"options": {"dfactor": 2.0}}, ValueError, r"dfactor"),
    "options: safety": ({"options": {"safety": 0.0}}, ValueError, r"safety"),
    **{
        f"grid: {name}": (
            {"method": "rk4", "options": {"grid_constructor": lambda func, y0, t, grid=grid: grid}},
            (TypeError, ValueError),
            r"grid_constructor must give",
        )
        for name, grid in {
            "late": tensor(0.1, 1.0),
            "early end": tensor(0.0, 0.9),
            "repeated": tensor(0.0, 0.5, 0.5, 1.0),
            "back": tensor(0.0, 0.7, 0.5, 1.0),
            "empty": tensor(),
            "a list": [0.0, 1.0],
        }.items()
    },
    "y0: integers": ({"y0": torch.ones(2, dtype=torch.int64)}, TypeError, r"^y0 must be .*floating"),
    "y0: a list of numbers": ({"y0": [1.0, 2.0]}, TypeError, r"^y0 must be a tensor"),
    "y0: integers in a tuple": ({"y0": (tensor(1.0), torch.ones(1, dtype=torch.int64))}, TypeError, r"^y0 must be"),
    "y0: empty tuple": ({"y0": ()}, ValueError, r"^y0 is an empty tuple"),
    "func: not callable": ({"func": 3}, TypeError, r"^func must be callable"),
    "field: shape": ({"func": lambda t, y: y[:1]}, ValueError, r"field must return .*shape \[2\].*got shape \[1\]"),
    "field: integers": ({"func": lambda t, y: y.long()}, ValueError, r"field must return .*float64.*got .*int64"),
    "field: complex": ({"func": lambda t, y: 1j * y}, ValueError, r"field must return .*float64.*got .*complex128"),
    "field: a number": ({"func": lambda t, y: 1.0}, TypeError, r"field must return .*got float"),
    "field: None": ({"func": lambda t, y: None}, TypeError, r"field must return .*got NoneType"),
    "field: a tuple": ({"func": lambda t, y: (y, y)}, TypeError, r"field must return .*got tuple"),
    "systems": ({"systems": "rows"}, TypeError, r"^systems must be"),
    "event: one time": ({"t": tensor(0.0), "event_fn": height}, ValueError, r"event_fn.* t must have two"),
    "event: three times": ({"t": tensor(0.0, 1.0, 2.0), "event_fn": height}, ValueError, r"event_fn.* t must have two"),
    "event: no step_size": ({"method": "rk4", "event_fn": height}, ValueError, r"event_fn.*step_size"),
}  # fmt: skip


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("case", ERRORS)
def test_wrong_input_is_named(case, interface):
    changes, error, message = ERRORS[case]
    call = {"func": wavy, "y0": tensor(0.5, -1.0), "t": tensor(0.0, 1.0)} | changes
    if interface == "odeint_adjoint":
        call["adjoint_params"] = ()
    with pytest.raises(error, match=message):
        getattr(solvers, interface)(call.pop("func"), call.pop("y0"), call.pop("t"), **call)


TUPLE_ERRORS = {
    "rtol: too few": ({"rtol": (1e-3, 1e-3)}, ValueError, r"^rtol has 2 elements, but y0 has 3"),
    "atol: too many": ({"atol": (1e-3,) * 4}, ValueError, r"^atol has 4 elements, but y0 has 3"),
    "rtol: negative": ({"rtol": (1e-3, -1e-3, 1e-3)}, ValueError, r"^rtol must not be negative"),
    "field: a tensor": ({"func": lambda t, y: y[0]}, TypeError, r"field must return a tuple"),
    "field: too few": ({"func": lambda t, y: y[:2]}, ValueError, r"field returned shapes"),
    "field: shapes": ({"func": lambda t, y: (y[1], y[0], y[2])}, ValueError, r"field returned shapes"),
    "field: numbers": ({"func": lambda t, y: (1.0, 2.0, 3.0)}, TypeError, r"field must return a tuple of tensors"),
}


@pytest.mark.parametrize("case", TUPLE_ERRORS)
def test_wrong_input_for_tuples_is_named(case):
    changes, error, message = TUPLE_ERRORS[case]
    call = {"func": coupled} | changes
    with pytest.raises(error, match=message):
        solvers.odeint(call.pop("func"), PARTS, tensor(0.0, 1.0), **call)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_field_that_is_not_finite_is_an_error(method, bad):
    def field(t, y):
        return torch.where(t < 0.5, 1.0, bad) * y

    with pytest.raises(SolveError, match="NaN or infinite") as raised:
        solvers.odeint(field, tensor(1.0), times(0.0, 1.0, 11), method=method)
    assert 0.3 < float(raised.value.t) < 0.6


@pytest.mark.parametrize("start", [0.0, 100.0])
def test_step_size_that_underflows_is_an_error(start):
    """y' = y^2 ends at t = 1. torchdiffeq has a bare assertion here (its issues 27, 57, 184 and 244)."""
    t = start + tensor(0.0, 2.0)
    with pytest.raises(SolveError, match=r"step size fell below .*jump_t") as raised:
        solvers.odeint(lambda t, y: y**2, tensor(1.0), t, rtol=1e-5, atol=1e-7, options={"max_num_steps": 600})
    assert float(raised.value.t) == pytest.approx(start + 1.0, rel=1e-4)


# -- in torchdiffeq's place -------------------------------------------------------------------------------------


def test_stands_in_for_torchdiffeq():
    import importlib
    import sys

    import solvers.compat

    theirs = importlib.import_module("torchdiffeq._impl.odeint").SOLVERS
    solvers.compat.install()
    solvers.compat.install()  # twice does no harm
    try:
        stand_in = importlib.import_module("torchdiffeq")
        assert stand_in.odeint is solvers.odeint
        assert importlib.import_module("torchdiffeq._impl.adjoint").odeint_adjoint is solvers.odeint_adjoint
        names = set(importlib.import_module("torchdiffeq._impl.odeint").SOLVERS)
        assert set(theirs) <= names
        dense = stand_in.odeint_dense(lambda t, y: -y, tensor(1.0), tensor(0.0)[0], tensor(1.0)[0])
        close(dense(0.3), torch.exp(tensor(-0.3)), 1e-6)
    finally:
        solvers.compat.uninstall()
    assert sys.modules["torchdiffeq"] is torchdiffeq
    assert importlib.import_module("torchdiffeq._impl.odeint").odeint is torchdiffeq.odeint
