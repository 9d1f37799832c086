"""Energies from SymPy expressions. Needs sympy, `pip install "lyapflow[symbolic]"`: import it by its own name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from solvers import Systems

from .base import PointwiseEnergy

try:
    import sympy
    from sympy.core.relational import Relational
    from sympy.functions.elementary.piecewise import ExprCondPair
    from sympy.logic.boolalg import BooleanAtom
    from sympy.printing.pycode import PythonCodePrinter
except ImportError as error:
    raise ImportError('lyapflow.symbolic needs sympy: pip install "lyapflow[symbolic]"') from error

__all__ = ["SymbolicEnergy"]


@final
class SymbolicEnergy(PointwiseEnergy):
    """An energy from a SymPy expression, with its gradient and its Hessian in closed form.

    The formula is computed as it is written: where a part of it overflows or has no real value, so does the energy
    (`(1 + tanh(x / 2)) / 2` is the sigmoid that never does). Only the chosen piece of a `Piecewise` counts, in all
    derivatives. At a kink the derivative is the mean of both sides for `Abs`, `Max` and `Min`, and that of the chosen
    piece for a `Piecewise`; jumps and kinks add nothing to further derivatives.

    Args:
        expr: A SymPy expression, or a string, which SymPy evaluates: do not pass one that you do not trust.
        symbols: The symbols that stand for the entries of a point, in order, or their names: `"x y"`, `"x0:9"`. All
            are taken to be real. The expression need not contain all of them.
        parameters: Further symbols of the expression, or their names, and the numbers that they start from. Each
            becomes a `Parameter` of its name, which is learned.
        systems: How the state is divided, by default into rows.

    Attributes:
        expr: The expression.
        symbols: The symbols of a point.

    >>> import sympy, torch
    >>> from lyapflow.symbolic import SymbolicEnergy
    >>> x, y = sympy.symbols("x y")
    >>> energy = SymbolicEnergy((x**2 - 1) ** 2 / 4 + sympy.cosh(y), [x, y])
    >>> h = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> energy(h)
    tensor([1.2500, 3.2500])
    >>> energy.gradient(h)[1]
    tensor([6., 0.])
    >>> energy.hessian(h)[0]
    tensor([[-1.,  0.],
            [ 0.,  1.]])
    >>> SymbolicEnergy("k * (x - y)**2 / 2", "x y", parameters={"k": 3})
    SymbolicEnergy(k*(x - y)**2/2, symbols=[x, y], parameters=[k])
    """

    def __init__(
        self,
        expr: sympy.Expr | str | float,
        symbols: str | sympy.Symbol | Sequence[sympy.Symbol | str],
        parameters: Mapping[sympy.Symbol | str, float] | None = None,
        systems: Systems | None = None,
    ) -> None:
        super().__init__(systems)
        if not isinstance(parameters, Mapping | None):
            raise TypeError(f"parameters must map symbols to numbers, got {type(parameters).__name__}")
        known = {s for s in getattr(expr, "free_symbols", ()) if isinstance(s, sympy.Symbol)}
        self.symbols = _as_symbols("symbols", symbols, known)
        others = _as_symbols("parameters", list(parameters), known) if parameters else ()
        _check_names(self.symbols, others)
        self.expr = _as_expression(expr, {symbol.name: symbol for symbol in (*self.symbols, *others)})
        unused = sorted(symbol.name for symbol in others if symbol not in self.expr.free_symbols)
        if unused:
            raise ValueError(f"parameters has symbols that expr does not contain: {unused}")
        self._formula = _Formula(self.expr, self.symbols, others)
        self._others = tuple(symbol.name for symbol in others)
        for name, value in zip(self._others, (parameters or {}).values(), strict=True):
            self._learn(name, value)

    def _learn(self, name: str, value: float) -> None:
        if hasattr(self, name) or "." in name:
            raise ValueError(f"parameters: {name!r} is an attribute of every energy, or has a dot; rename the symbol")
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"parameters[{name!r}] must be a number, got {value!r}") from error
        if not math.isfinite(number):
            raise ValueError(f"parameters[{name!r}] must be finite, got {value!r}")
        self.register_parameter(name, nn.Parameter(torch.tensor(number)))

    def density(self, h: Tensor) -> Tensor:
        (value,) = self._evaluate(self._formula.value, h)
        return value

    def gradient(self, h: Tensor) -> Tensor:
        """The gradient at every point, from its formula: `[..., d]` to `[..., d]`."""
        return torch.stack(self._evaluate(self._formula.gradient, h), dim=-1)

    def hessian(self, h: Tensor) -> Tensor:
        """The Hessian at every point, from its formula: `[..., d]` to `[..., d, d]`."""
        d = len(self.symbols)
        return torch.stack(self._evaluate(self._formula.hessian, h), dim=-1).unflatten(-1, (d, d))

    def _evaluate(self, function: Callable[..., list[Any]], h: Tensor) -> list[Tensor]:
        d = len(self.symbols)
        if not h.is_floating_point():
            raise TypeError(f"SymbolicEnergy needs a state of a real floating point type, got {h.dtype}")
        if h.ndim == 0 or h.shape[-1] != d:
            names = ", ".join(map(str, self.symbols))
            raise ValueError(
                f"SymbolicEnergy is for points of {d} entries ({names}), got a state of shape {list(h.shape)}"
            )
        # Functions of parameters alone would else be computed in the parameters' precision.
        others = (getattr(self, name).to(h.dtype) for name in self._others)
        values = (_as_tensor(value, h) for value in function(*h.unbind(-1), *others))
        return [value if value.shape == h.shape[:-1] else value.expand(h.shape[:-1]).contiguous() for value in values]

    def extra_repr(self) -> str:
        text = str(self.expr)
        told = [text if len(text) <= 200 else f"{text[:200]}...", f"symbols={list(self.symbols)}"]
        if self._others:
            told.append(f"parameters=[{', '.join(self._others)}]")
        return ", ".join(told)


# -- what the user gave ------------------------------------------------------------------------------------------------


def _as_symbols(argument: str, given: Any, known: set[sympy.Symbol]) -> tuple[sympy.Symbol, ...]:
    """The symbols meant: a name stands for the known symbol of that name, whatever its assumptions, else a new one."""
    items = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found: list[sympy.Symbol] = []
    for item in items:
        if isinstance(item, str) and item.strip():
            new = sympy.symbols(item, seq=True)
            namesakes = [[symbol for symbol in known if symbol.name == fresh.name] for fresh in new]
            found += [same[0] if len(same) == 1 else fresh for fresh, same in zip(new, namesakes, strict=True)]
        elif isinstance(item, sympy.Symbol):
            found.append(item)
        else:
            raise TypeError(f"{argument} must be SymPy symbols or their names, got {item!r}")
    if not found:
        raise ValueError(f"{argument} must name at least one symbol, got {given!r}")
    for symbol in found:
        if symbol.is_real is False or not symbol.is_commutative:
            raise ValueError(f"{argument} must be real numbers, but {symbol} was declared as something else")
    return tuple(found)


def _check_names(symbols: Sequence[sympy.Symbol], others: Sequence[sympy.Symbol]) -> None:
    names = [symbol.name for symbol in (*symbols, *others)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"symbols and parameters must differ from each other, got {twice} more than once")


def _as_expression(given: Any, names: dict[str, sympy.Symbol]) -> sympy.Expr:
    expr = given
    if isinstance(given, (str, int, float)):
        try:
            expr = sympy.sympify(given, locals=names)
        except (sympy.SympifyError, TypeError, SyntaxError, AttributeError) as error:
            raise ValueError(f"expr must be an expression that SymPy can read, got {given!r}: {error}") from error
    if not isinstance(expr, sympy.Expr) or expr.is_Matrix:
        raise TypeError(f"expr must be a scalar SymPy expression or a string, got {given!r} of {type(expr).__name__}")
    unknown = expr.free_symbols - set(names.values())
    if unknown:
        same = sorted(str(symbol) for symbol in unknown if str(symbol) in names)
        hint = f"; {same} have the name of a given one, but other assumptions" if same else ""
        raise ValueError(
            f"expr has symbols that are neither in symbols nor in parameters: {sorted(map(str, unknown))}{hint}"
        )
    return expr


# -- from an expression to functions of tensors ------------------------------------------------------------------------


@final
class _Formula:
    """An expression and its derivatives as functions of tensors: the entries of a point, then the parameters.

    Such functions can be neither pickled nor copied: a copy shares them, and they are made again from a pickle.
    """

    def __init__(self, expr: sympy.Expr, point: tuple[sympy.Symbol, ...], others: tuple[sympy.Symbol, ...]) -> None:
        self._made_of = (expr, point, others)
        # No name of a Dummy is taken in the generated code. That they are real lets SymPy simplify.
        variables = {s: sympy.Dummy(s.name, **{**s.assumptions0, "real": True}) for s in (*point, *others)}
        real = expr.xreplace(variables)
        _check_translatable(real)
        if real.is_real is False:
            raise ValueError(f"expr must be real, but it is not for any real {', '.join(map(str, variables))}: {expr}")
        self._expr = _over_the_reals(real)
        self._point = [variables[symbol] for symbol in point]
        self._arguments = list(variables.values())
        self.value = _function(self._arguments, [self._expr])

    def __reduce__(self) -> Any:
        return _Formula, self._made_of

    def __deepcopy__(self, memo: Any) -> _Formula:
        return self

    @functools.cached_property
    def gradient(self) -> Callable[..., list[Any]]:
        return _function(self._arguments, self._slopes)

    @functools.cached_property
    def hessian(self) -> Callable[..., list[Any]]:
        """Its entries, row by row."""
        upper = {
            (i, j): _derivative(slope, x)
            for i, slope in enumerate(self._slopes)
            for j, x in enumerate(self._point)
            if i <= j
        }
        d = range(len(self._point))
        return _function(self._arguments, [upper[min(i, j), max(i, j)] for i in d for j in d])

    @functools.cached_property
    def _slopes(self) -> list[sympy.Expr]:
        return [_derivative(self._expr, x) for x in self._point]


def _derivative(expr: sympy.Expr, x: sympy.Symbol) -> sympy.Expr:
    """The derivative; SymPy writes that of x**p as p*x**p/x, which has no value at x = 0."""
    slope = expr.diff(x)
    if any(not power.exp.is_number for power in slope.atoms(sympy.Pow)):
        return sympy.powsimp(slope, deep=True, combine="exp")
    return slope


def _function(arguments: Sequence[sympy.Symbol], expressions: Sequence[sympy.Basic]) -> Callable[..., list[Any]]:
    """A function of tensors that returns a list; what does not depend on the arguments comes as a number."""
    pieces: dict[sympy.Piecewise, sympy.Expr] = {}
    ready = [_evaluable(expr, pieces) for expr in expressions]
    namespace: dict[str, Any] = {"sqrt": torch.sqrt, **{kind.__name__: call for kind, call in FUNCTIONS.items()}}
    for piecewise, call in pieces.items():
        namespace[call.func.__name__] = _Pieces(piecewise, call.args)
    printer = _Printer({"fully_qualified_modules": False, "user_functions": {name: name for name in namespace}})
    return sympy.lambdify(arguments, ready, [namespace], printer=printer, cse=True, docstring_limit=0)


class _Printer(PythonCodePrinter):
    """Python code that serves tensors."""

    _operators: ClassVar[dict[str, str]] = {"and": "&", "or": "|", "not": "~"}

    def _print_Integer(self, expr: sympy.Integer) -> str:
        return str(expr) if abs(expr) < 2**53 else repr(float(expr))  # torch takes integers of 64 bits only


def _evaluable(expr: sympy.Basic, pieces: dict[sympy.Piecewise, sympy.Expr]) -> sympy.Basic:
    """The expression with its constant parts as floats, for which torch has no functions.

    Every Piecewise becomes a call of a function that is yet to be made, noted in `pieces`: common subexpressions must
    not be taken out of it, see :class:`_Pieces`.
    """
    if _is_constant(expr):
        return _number(expr)
    if isinstance(expr, sympy.Piecewise):
        if expr not in pieces:
            arguments = sorted(expr.free_symbols, key=sympy.default_sort_key)
            pieces[expr] = sympy.Function(f"piecewise_{len(pieces)}")(*arguments)
        return pieces[expr]
    return expr.func(*(_evaluable(arg, pieces) for arg in expr.args)) if expr.args else expr


@final
class _Pieces:
    """A Piecewise as a function of tensors.

    All pieces are computed everywhere, so where one is not chosen its arguments are replaced: an infinite derivative of
    it, times the gradient 0 that arrives there, would else be NaN.
    """

    def __init__(self, piecewise: sympy.Piecewise, arguments: Sequence[sympy.Symbol]) -> None:
        *conditions, _ = (condition for _, condition in piecewise.args)  # the last piece has all the rest
        self.conditions = _function(arguments, conditions)
        self.pieces = [_function(arguments, [piece]) for piece, _ in piecewise.args]

    def __call__(self, *arguments: Tensor) -> Tensor:
        masks = []
        rest = torch.ones((), dtype=torch.bool, device=arguments[0].device)
        for condition in self.conditions(*arguments):
            masks.append(rest & condition)
            rest = rest & ~condition
        values = []
        for piece, mask in zip(self.pieces, (*masks, rest), strict=True):
            (value,) = piece(*(torch.where(mask, x, 1.0) for x in arguments))
            values.append(_as_tensor(value, arguments[0]))
        result = values.pop()
        for mask, value in zip(masks, values, strict=True):
            result = torch.where(mask, value, result)
        return result


def _as_tensor(value: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.full((), value, dtype=like.dtype, device=like.device)


# -- functions of real numbers -----------------------------------------------------------------------------------------
# SymPy differentiates Abs, sign and Heaviside as functions of complex numbers or as distributions. These take and give
# real numbers, and their derivatives are those of their counterparts in torch, at kinks too.


class RealAbs(sympy.Function):
    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        return RealSign(self.args[0])


class RealSign(sympy.Function):
    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        return sympy.S.Zero


class Step(sympy.Function):
    """0 below 0, 1 above, and its second argument at 0, which is a number."""

    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        return sympy.S.Zero


class Larger(sympy.Function):
    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        a, b = self.args
        return Step(a - b if argindex == 1 else b - a, sympy.S.Half)


class Smaller(sympy.Function):
    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        a, b = self.args
        return Step(b - a if argindex == 1 else a - b, sympy.S.Half)


def _step(x: Tensor, at_zero: float) -> Tensor:
    return (x > 0).to(x.dtype) + at_zero * (x == 0).to(x.dtype)


def _of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    """A function of two tensors, for arguments of which one may be a number."""

    def call(a: Any, b: Any) -> Tensor:
        return function(_as_tensor(a, b), _as_tensor(b, a))

    return call


# All derivatives of these functions are made of these functions.
FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    sympy.exp: torch.exp,
    sympy.log: torch.log,
    sympy.sin: torch.sin,
    sympy.cos: torch.cos,
    sympy.tan: torch.tan,
    sympy.cot: lambda x: 1 / torch.tan(x),
    sympy.sec: lambda x: 1 / torch.cos(x),
    sympy.csc: lambda x: 1 / torch.sin(x),
    sympy.asin: torch.asin,
    sympy.acos: torch.acos,
    sympy.atan: torch.atan,
    sympy.atan2: _of_two(torch.atan2),
    sympy.sinh: torch.sinh,
    sympy.cosh: torch.cosh,
    sympy.tanh: torch.tanh,
    sympy.coth: lambda x: 1 / torch.tanh(x),
    sympy.sech: lambda x: 1 / torch.cosh(x),
    sympy.csch: lambda x: 1 / torch.sinh(x),
    sympy.asinh: torch.asinh,
    sympy.acosh: torch.acosh,
    sympy.atanh: torch.atanh,
    sympy.erf: torch.erf,
    sympy.erfc: torch.erfc,
    RealAbs: torch.abs,
    RealSign: torch.sign,
    Step: _step,
    Larger: _of_two(torch.maximum),
    Smaller: _of_two(torch.minimum),
}

REPLACED = {
    sympy.Abs: RealAbs,
    sympy.sign: RealSign,
    sympy.Heaviside: Step,
    sympy.Max: lambda *args: functools.reduce(Larger, args),
    sympy.Min: lambda *args: functools.reduce(Smaller, args),
}

STRUCTURE = (
    sympy.Symbol, sympy.Add, sympy.Mul, sympy.Pow, sympy.Piecewise, ExprCondPair,
    Relational, sympy.And, sympy.Or, sympy.Not, BooleanAtom,
)  # fmt: skip


def _over_the_reals(expr: sympy.Basic) -> Any:
    """The expression in functions of real numbers; every Piecewise in it has a value everywhere."""
    if _is_constant(expr) or not expr.args:
        return expr
    args = [_over_the_reals(arg) for arg in expr.args]
    if isinstance(expr, sympy.Piecewise) and sympy.Or(*(cond for _, cond in args)).simplify() != sympy.true:
        told = expr.xreplace({dummy: sympy.Symbol(dummy.name) for dummy in expr.free_symbols})
        raise ValueError(f"expr has no value where no condition of this holds: {told}; end it with (value, True)")
    return REPLACED.get(type(expr), expr.func)(*args)


def _check_translatable(expr: sympy.Basic) -> None:
    unknown = sorted(set(_untranslatable(expr)))
    if unknown:
        known = sorted(kind.__name__ for kind in (*FUNCTIONS, *REPLACED) if kind.__module__.startswith("sympy."))
        raise ValueError(
            f"expr has functions that cannot be computed with tensors: {unknown}; known are {', '.join(known)}, "
            "Piecewise and powers. Sums, derivatives and integrals may have a closed form: expr.doit()"
        )


def _untranslatable(expr: sympy.Basic) -> Iterator[str]:
    if _is_constant(expr):
        _number(expr)
        return
    if not (type(expr) in FUNCTIONS or type(expr) in REPLACED or isinstance(expr, STRUCTURE)):
        yield expr.func.__name__
        return
    if isinstance(expr, sympy.Heaviside) and expr.args[1].free_symbols:
        yield "Heaviside with a variable for its value at 0"
    for arg in expr.args:
        yield from _untranslatable(arg)


def _is_constant(expr: sympy.Basic) -> bool:
    return isinstance(expr, sympy.Expr) and not expr.free_symbols


def _number(constant: sympy.Expr) -> sympy.Number:
    """The value of a constant: a fraction as it is, anything else as a float."""
    value = constant if constant.is_Rational else constant.evalf(20)
    try:
        finite = math.isfinite(float(value))
    except (TypeError, OverflowError):
        finite = False
    if not finite:
        raise ValueError(f"expr must be real, with numbers that floats can hold, but it contains {constant}")
    return value
