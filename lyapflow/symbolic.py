"""Energies from SymPy expressions. Needs sympy: `pip install "lyapflow[symbolic]"`; nothing else imports this module."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from solvers import Systems

from .components import PointwiseEnergy

try:
    import sympy
    from sympy.core.relational import Relational
    from sympy.functions.elementary.piecewise import ExprCondPair
    from sympy.logic.boolalg import BooleanAtom
    from sympy.printing.pycode import PythonCodePrinter
except ImportError as error:
    raise ImportError('lyapflow.symbolic needs sympy: pip install "lyapflow[symbolic]"') from error


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
    >>> energy(h), energy.gradient(h)
    (tensor([1.2500, 3.2500]), tensor([[0., 0.],
            [6., 0.]]))
    >>> energy.hessian(h[0])
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
        super().__init__()
        if systems is not None:
            self.systems = systems
        known = {s for s in getattr(expr, "free_symbols", ()) if isinstance(s, sympy.Symbol)}
        self.symbols = _as_symbols("symbols", symbols, known)
        learned = {} if parameters is None else dict(parameters)
        others = _as_symbols("parameters", tuple(learned), known) if learned else ()
        _check_names(self.symbols, others)
        self.expr = _as_expression(expr, {symbol.name: symbol for symbol in (*self.symbols, *others)})
        self._formula = _Formula(self.expr, self.symbols, others)
        self._others = tuple(symbol.name for symbol in others)
        for name, value in zip(self._others, learned.values(), strict=True):
            self._learn(name, value)

    def _learn(self, name: str, value: float) -> None:
        if hasattr(self, name) or "." in name:
            raise ValueError(f"parameters: {name!r} cannot be a parameter's name, an energy uses it; rename the symbol")
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


# -- what the user gave -------------------------------------------------------------------------------------------


def _as_symbols(argument: str, given: Any, known: set[sympy.Symbol]) -> tuple[sympy.Symbol, ...]:
    """The symbols meant: a name stands for the known symbol of that name, whatever its assumptions, else a new one."""
    items = [given] if isinstance(given, (str, sympy.Symbol)) else list(given)
    found: list[sympy.Symbol] = []
    for item in items:
        if isinstance(item, str):
            new = sympy.symbols(item, seq=True)
            namesakes = [[symbol for symbol in known if symbol.name == fresh.name] for fresh in new]
            found += [same[0] if len(same) == 1 else fresh for fresh, same in zip(new, namesakes, strict=True)]
        elif isinstance(item, sympy.Symbol):
            found.append(item)
        else:
            raise TypeError(f"{argument} must be SymPy symbols or their names, got {item!r} of {type(item).__name__}")
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
    unused = [name for name, symbol in names.items() if symbol not in expr.free_symbols]
    return expr


# -- from an expression to functions of tensors --------------------------------------------------------------------


@final
class _Formula:
    """An expression and its derivatives as functions of tensors: the entries of a point, then the parameters.

    Such functions cannot be pickled or copied, so they are made on first use.
    """

    def __init__(
        self, expr: sympy.Expr, point: tuple[sympy.Symbol, ...], others: tuple[sympy.Symbol, ...]
    ) -> None:
        self._made_of = (expr, point, others)
        # Dummies have no name that could be one of the generated code's own; and that they are real lets SymPy simplify.
        variables = {s: sympy.Dummy("h", **{**s.assumptions0, "real": True}) for s in (*point, *others)}
        real = expr.xreplace(variables)
        _check_translatable(real)
        self._expr = _over_the_reals(real)
        self._point = [variables[symbol] for symbol in point]
        self._arguments = list(variables.values())

    def __reduce__(self) -> Any:
        return _Formula, self._made_of

    def __deepcopy__(self, memo: Any) -> _Formula:
        return self

    @functools.cached_property
    def value(self) -> Callable[..., list[Any]]:
        return _function(self._arguments, [self._expr])

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
    namespace = {kind.__name__: function for kind, function in FUNCTIONS.items()}
    pieces: dict[sympy.Piecewise, sympy.Expr] = {}
    ready = [_evaluable(expr, namespace, pieces) for expr in expressions]
    printer = _Printer({"fully_qualified_modules": False, "user_functions": {name: name for name in namespace}})
    return sympy.lambdify(arguments, ready, [namespace], printer=printer, cse=True, docstring_limit=0)


class _Printer(PythonCodePrinter):  # type: ignore[misc]
    """Python code that serves tensors: elementwise logic, and all digits of a number."""

    _operators = {"and": "&", "or": "|", "not": "~"}  # noqa: RUF012

    def _print_Float(self, expr: sympy.Float) -> str:
        return repr(float(expr))

    def _print_Integer(self, expr: sympy.Integer) -> str:
        return str(expr) if abs(expr) < 2**53 else repr(float(expr))  # torch takes integers of 64 bits only
