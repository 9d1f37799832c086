"""Dynamics by name: those of the package, and what users register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lyapflow.registry import Registry

from ..conv import DynamicsConv

Made = TypeVar("Made", bound=type[DynamicsConv])


def _checked(name: str, found: Any) -> type[DynamicsConv]:
    if not (isinstance(found, type) and issubclass(found, DynamicsConv)):
        raise TypeError(f"{name} must be a class derived from DynamicsConv, got {found!r}")
    return found


DYNAMICS: Registry[type[DynamicsConv]] = Registry("dynamics", _checked)
"""The classes of all dynamics by the names that `model.kind` of a configuration takes."""


def register_dynamics(name: str) -> Callable[[Made], Made]:
    """Decorate a class of dynamics, so that configurations know it by a name.

    It is made as `Class(channels, **options)`; its further arguments with defaults are options that a configuration can
    set.

    Args:
        name: A name that is still free.

    >>> from lyapflow_graph.dynamics import DYNAMICS, GraphDynamics, register_dynamics
    >>> @register_dynamics("fading")
    ... class Fade(GraphDynamics):
    ...     def velocity(self, h, graphs):
    ...         return -h
    >>> DYNAMICS["fading"](4).channels
    4
    """

    def register(made: Made) -> Made:
        DYNAMICS.add(name, _checked(name, made))
        return made

    return register
