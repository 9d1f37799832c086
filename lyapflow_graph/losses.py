"""What is minimised: losses by name, those that the protocols of data sets ask for and those that users register.

A loss is a sum over items divided by a count of them, and both are given: so that a batch which several processes share
has the loss that one process would compute, not a mean of means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from lyapflow.registry import Registry


def _of_this_process(x: Tensor) -> Tensor:
    return x


class Judged(NamedTuple):
    """What is predicted of the nodes or graphs that count, what is true of them, and the graph each belongs to.

    `over_all` sums a tensor over all processes that share the batch.
    """

    prediction: Tensor
    target: Tensor
    graph: Tensor
    graphs: int
    over_all: Callable[[Tensor], Tensor] = _of_this_process


def judged(prediction: Tensor, data: Any, over_all: Callable[[Tensor], Tensor] = _of_this_process) -> Judged:
    """The rows of a prediction that are learned from or judged: of all nodes or graphs, or those of the mask.

    >>> from torch_geometric.data import Data
    >>> data = Data(x=torch.zeros(3, 1), y=torch.tensor([0, 1, 1]), mask=torch.tensor([True, False, True]))
    >>> judged(torch.eye(3), data).target
    tensor([0, 1])
    """
    target, mask, batch = data.y, getattr(data, "mask", None), getattr(data, "batch", None)
    graphs = 1 if batch is None else int(data.num_graphs)
    graph = torch.zeros(len(prediction), dtype=torch.long, device=prediction.device) if batch is None else batch
    if len(graph) != len(prediction):  # of graphs, not of nodes
        graph = torch.arange(len(prediction), device=prediction.device)
    if len(target) != len(prediction):
        raise ValueError(f"the data has {len(target)} labels y for {len(prediction)} predictions")
    if mask is not None:
        prediction, target, graph = prediction[mask], target[mask], graph[mask]
    # Losses of half precision lose digits that nobody saves time by.
    exact = prediction if prediction.dtype == torch.float64 else prediction.float()
    return Judged(exact, target, graph, graphs, over_all)


Items = Tensor | tuple[Tensor, Tensor]
OfItems = TypeVar("OfItems", bound=Callable[[Judged], Items])


@final
@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss of the registry.

    Attributes:
        name: What it is asked for by.
        items: From :class:`Judged` to the loss of every item, of any shape; or that and the weight of each.
        labels: What `y` has: "classes" as integers, "binary" labels as 0 and 1, a column for each output, or "values".
        metric: The name of the metric that goes with it, where none is chosen.

    >>> from lyapflow_graph.losses import LOSSES, Judged
    >>> total, count = LOSSES["l1"].sums(Judged(torch.ones(2, 1), torch.tensor([[1.0], [4.0]]), torch.arange(2), 2))
    >>> total / count
    tensor(1.5000)
    """

    name: str
    items: Callable[[Judged], Items]
    labels: Literal["classes", "binary", "values"]
    metric: str

    def sums(self, seen: Judged) -> tuple[Tensor, Tensor]:
        """The sum over the items of this process, and their count: the loss is the quotient of both over all."""
        if self.labels != "classes":
            seen = seen._replace(target=seen.target.to(seen.prediction.dtype).reshape(seen.prediction.shape))
        found = self.items(seen)
        if isinstance(found, tuple):
            each, weight = found
            return (weight * each).sum(), weight.sum()
        return found.sum(), found.new_full((), found.numel())


def _loss_of(name: str, found: Any) -> Loss:
    if isinstance(found, Loss):
        return found
    registered = next((loss for loss in LOSSES.values() if loss.items is found), None)
    if registered is None:
        raise TypeError(f"{name} must be a Loss or a function with @register_loss, got {found!r}")
    return registered


LOSSES: Registry[Loss] = Registry("loss", _loss_of)
"""All losses by name."""


def register_loss(
    name: str, *, labels: Literal["classes", "binary", "values"], metric: str
) -> Callable[[OfItems], OfItems]:
    """Decorate a function from :class:`Judged` to the loss of every item, so that data sets know it by a name.

    Args:
        name: A name that is still free.
        labels: See :class:`Loss`.
        metric: See :class:`Loss`.

    >>> from lyapflow_graph.losses import LOSSES, register_loss
    >>> @register_loss("huber", labels="values", metric="mae")
    ... def huber(seen):
    ...     return torch.nn.functional.huber_loss(seen.prediction, seen.target, reduction="none")
    >>> LOSSES["huber"].metric
    'mae'
    """

    def register(items: OfItems) -> OfItems:
        LOSSES.add(name, Loss(name, items, labels, metric))
        return items

    return register


@register_loss("cross_entropy", labels="classes", metric="accuracy")
def _cross_entropy(seen: Judged) -> Tensor:
    return F.cross_entropy(seen.prediction, seen.target, reduction="none")


@register_loss("weighted_cross_entropy", labels="classes", metric="weighted_accuracy")
def _weighted_cross_entropy(seen: Judged) -> Items:
    """Each class by the share of the whole batch that is not of it; 0 for those that are absent."""
    ones = torch.ones_like(seen.target, dtype=seen.prediction.dtype)
    counts = seen.over_all(seen.prediction.new_zeros(seen.prediction.shape[1]).index_add(0, seen.target, ones))
    total = counts.sum()
    weights = torch.where(counts > 0, (total - counts) / total.clamp(min=1), 0.0)
    return _cross_entropy(seen), weights[seen.target]


@register_loss("binary_cross_entropy", labels="binary", metric="roc_auc")
def _binary_cross_entropy(seen: Judged) -> Tensor:
    return F.binary_cross_entropy_with_logits(seen.prediction, seen.target, reduction="none")


@register_loss("l1", labels="values", metric="mae")
def _l1(seen: Judged) -> Tensor:
    return (seen.prediction - seen.target).abs()


@register_loss("mse", labels="values", metric="log10_mse")
def _mse(seen: Judged) -> Tensor:
    return (seen.prediction - seen.target).square()


@register_loss("mse_by_graph", labels="values", metric="log10_mse")
def _mse_by_graph(seen: Judged) -> Tensor:
    """The squared error averaged within each graph that has any items: `[graphs with items]`."""
    error = _mse(seen).mean(1)
    sums = error.new_zeros(seen.graphs).index_add(0, seen.graph, error)
    counts = error.new_zeros(seen.graphs).index_add(0, seen.graph, torch.ones_like(error))
    return sums[counts > 0] / counts[counts > 0]
