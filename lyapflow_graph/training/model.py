"""The model that a configuration describes, for the dataset that it is trained on."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from torch import nn

from lyapflow.registry import UnknownNameError, meant

from ..backbones import BACKBONES, make_backbone
from ..data.dataset import GraphDataset
from ..dynamics import DYNAMICS
from ..models import GraphModel, GraphNet, Tango
from ..tango import TangoConv
from .schema import ConfigError, check_names, convert, representable

# What is fixed by the dataset, by hidden_channels, or by the place of a layer in a network.
_FIXED = {"self", "in_channels", "out_channels", "hidden_channels", "channels", "task", "edge_dim", "pe", "body"}
_FIXED |= {"name", "nn", "deg", "layer", "concat", "cached", "energy_gnn"}
_AROUND = ("act", "dropout", "readout_pool")  # of the encoder and the readout


_NONE_HERE = object()


@dataclasses.dataclass(frozen=True)
class Option:
    """What can be set of a model: the type, and what it is where nobody sets it.

    Layers of PyTorch Geometric have no default here: what our networks make of them decides.
    """

    hint: Any
    default: Any = _NONE_HERE


def kinds() -> tuple[str, ...]:
    """What `kind` of a model can be: TANGO, a backbone by itself, or other dynamics."""
    return ("tango", *BACKBONES, *DYNAMICS)


def options_of(kind: str, given: Mapping[str, Any]) -> dict[str, Option]:
    """What can be set of a kind of model, from the signatures of what it is made of.

    Args:
        kind: One of :func:`kinds`.
        given: What is set; the message passing in GPS has options of its own.

    >>> options_of("grand", {})["heads"]
    Option(hint=<class 'int'>, default=1)
    """
    if kind == "tango":
        return _options(TangoConv) | _options(Tango)
    around = {name: option for name, option in _options(GraphNet).items() if name in _AROUND}
    return around | (_options(DYNAMICS[kind]) if kind in DYNAMICS else _backbone_options(kind, given))


def resolved(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a kind of model: those that are given, converted to their types, and the defaults of the others.

    >>> resolved("dgc", {"num_steps": 4, "step_size": 1})["step_size"]
    1.0
    >>> resolved("dgc", {"num_step": 4})
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: unknown key model.num_step; did you mean model.num_steps? known are: ...
    """
    if kind not in kinds():
        raise ConfigError(f"unknown model.kind {kind!r}; {meant(kind, kinds())}")
    try:
        known = options_of(kind, given)
    except UnknownNameError as error:
        raise ConfigError(f"model.local: {error}") from None
    check_names("model.", given, {*known, "kind", "hidden_channels"})
    found = {name: option.default for name, option in known.items() if option.default is not _NONE_HERE}
    found |= {name: convert(f"model.{name}", value, known[name].hint) for name, value in given.items()}
    if kind == "tango":
        _check_backbone_options(found)
    return found


def make_model(kind: str, hidden_channels: int, options: Mapping[str, Any], dataset: GraphDataset) -> GraphModel:
    """The model, with the widths that the dataset has.

    Args:
        kind: One of :func:`kinds`.
        hidden_channels: The width inside.
        options: Everything else, as :func:`resolved` gives it.
        dataset: What it is for.
    """
    outside: dict[str, Any] = {"task": dataset.task, "edge_dim": dataset.edge_dim, "pe": dict(dataset.pe)}
    outside |= {"in_channels": dataset.in_channels, "out_channels": dataset.out_channels}
    outside |= {"hidden_channels": hidden_channels}
    try:
        if kind == "tango":
            return Tango(**outside, **options)
        body = _body(kind, hidden_channels, options, dataset.edge_dim)
        around = {name: options[name] for name in _AROUND}
        return GraphNet(body=body, **outside, **around)
    except (TypeError, ValueError) as error:
        edges = "edge_dim" in str(error) or "features of edges" in str(error)
        hint = f"; {dataset.name} has such: leave them out by data.edge_features = false" if edges else ""
        raise ConfigError(f"model ({kind}): {error}{hint}") from error


def _body(kind: str, channels: int, options: Mapping[str, Any], edge_dim: int | tuple[int, ...] | None) -> nn.Module:
    if kind in DYNAMICS:
        if edge_dim is not None:
            raise ValueError("it has no use for features of edges")
        return DYNAMICS[kind](channels, **{name: value for name, value in options.items() if name not in _AROUND})
    width = edge_dim if edge_dim is None or isinstance(edge_dim, int) else channels
    own = {name: value for name, value in options.items() if name != "readout_pool"}
    return make_backbone(kind, channels, edge_dim=width, **own)


def _check_backbone_options(options: Mapping[str, Any]) -> None:
    """That the networks of TANGO know their own options."""
    own = options.get("backbone_options") or {}
    backbone = options["backbone"]
    try:
        known = set(_backbone_options(backbone, own)) - {"num_layers", "norm", "act", "dropout"}
    except UnknownNameError as error:
        raise ConfigError(f"model.backbone: {error}") from None
    check_names("model.backbone_options.", own, known)


def _backbone_options(name: str, given: Mapping[str, Any]) -> dict[str, Option]:
    entry = BACKBONES[name]
    own = _options(entry.options)
    inner = BACKBONES[given.get("local", own["local"].default)] if entry.wraps_layer else entry
    return ({} if inner.layer_options is None else _without_defaults(inner.layer_options)) | own


def _without_defaults(made: Any) -> dict[str, Option]:
    return {name: Option(option.hint) for name, option in _options(made).items()}


def _options(made: Any) -> dict[str, Option]:
    call = made.__init__ if inspect.isclass(made) else made
    hints = typing.get_type_hints(call)
    found = {}
    for name, parameter in inspect.signature(call).parameters.items():
        # A parameter without a default is given by what makes the network.
        if parameter.kind is parameter.VAR_KEYWORD or name in _FIXED or parameter.default is parameter.empty:
            continue
        if representable(hints.get(name, Any)):
            found[name] = Option(hints.get(name, Any), parameter.default)
    return found
