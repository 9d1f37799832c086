"""Losses and metrics against their definitions; in parts as in whole; only what the mask lets count."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data

from lyapflow_graph.data.dataset import GraphDataset
from lyapflow_graph.losses import LOSSES, Judged, judged
from lyapflow_graph.metrics import METRICS
from lyapflow_graph.training.labels import check_labels
from tests.lyapflow_graph.training.cases import one_graph

CLASSES = 3


def random_seen(loss: str, graphs: int, seed: int) -> Judged:
    random = torch.Generator().manual_seed(seed)
    graph = torch.arange(graphs).repeat_interleave(torch.randint(0, 4, (graphs,), generator=random))
    prediction = torch.randn(len(graph), CLASSES, generator=random, dtype=torch.float64)
    if LOSSES[loss].labels == "classes":
        target = torch.randint(0, CLASSES, (len(graph),), generator=random)
    else:
        target = torch.randint(0, 2, prediction.shape, generator=random).double()
    return Judged(prediction, target, graph, graphs)


def by_definition(loss: str, seen: Judged) -> Tensor:
    if loss == "cross_entropy":
        return F.cross_entropy(seen.prediction, seen.target)
    if loss == "weighted_cross_entropy":
        counts = torch.bincount(seen.target, minlength=CLASSES).double()
        weight = torch.where(counts > 0, (len(seen.target) - counts) / len(seen.target), 0.0)
        return F.cross_entropy(seen.prediction, seen.target, weight)
    if loss == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(seen.prediction, seen.target)
    if loss == "l1":
        return F.l1_loss(seen.prediction, seen.target)
    if loss == "mse":
        return F.mse_loss(seen.prediction, seen.target)
    if loss == "mse_by_graph":
        own = [seen.graph == i for i in seen.graph.unique()]
        return torch.stack([F.mse_loss(seen.prediction[rows], seen.target[rows]) for rows in own]).mean()
    total, count = LOSSES[loss].sums(seen)  # of a loss that is new here, at least its parts make up the whole
    return total / count


@pytest.mark.parametrize("loss", list(LOSSES))
@hypothesis.given(graphs=st.integers(1, 6), cut=st.integers(0, 6), seed=st.integers(0, 2**16))
def test_losses_of_parts_and_of_the_whole(loss: str, graphs: int, cut: int, seed: int) -> None:
    """Also where a part has nothing: the quotient of sums over all processes is the loss."""
    seen = random_seen(loss, graphs, seed)
    hypothesis.assume(len(seen.target) > 0)
    expected = by_definition(loss, seen)
    hypothesis.assume(bool(torch.isfinite(expected)))  # one class alone has weight 0 in all
    first = seen.graph < cut
    parts = [
        Judged(seen.prediction[first], seen.target[first], seen.graph[first], min(cut, graphs)),
        Judged(seen.prediction[~first], seen.target[~first], seen.graph[~first] - min(cut, graphs), graphs),
    ]
    for pieces in ([seen], parts):
        counts = torch.stack([torch.bincount(piece.target, minlength=CLASSES) for piece in pieces]).sum(0).double() if (
            loss == "weighted_cross_entropy") else None  # fmt: skip
        over_all = lambda x, counts=counts: x if counts is None else counts  # noqa: E731
        sums = [LOSSES[loss].sums(piece._replace(over_all=over_all)) for piece in pieces]
        total, count = (torch.stack(column).sum() for column in zip(*sums, strict=True))
        torch.testing.assert_close(total / count, expected, rtol=1e-12, atol=1e-14)


def test_only_masked_nodes_count() -> None:
    mask = torch.tensor([True, False, True])
    data = Data(
        x=torch.zeros(3, 1), edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.tensor([0, 1, 1]), mask=mask
    )
    batch = Batch.from_data_list([data, data])
    prediction = torch.randn(6, 2, requires_grad=True)
    seen = judged(prediction, batch)
    assert seen.target.tolist() == [0, 1, 0, 1]
    assert seen.graph.tolist() == [0, 0, 1, 1]
    LOSSES["cross_entropy"].sums(seen)[0].backward()
    assert prediction.grad is not None
    assert (prediction.grad.abs().sum(1) > 0).tolist() == [True, False, True] * 2


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="the data has 2 labels y for 3 predictions"):
        judged(torch.zeros(3, 1), Data(x=torch.zeros(3, 1), y=torch.zeros(2, 1)))


# -- metrics ----------------------------------------------------------------------------------------------------------


def measured(metric: str, loss: str, channels: int, pieces: list[Judged]) -> float:
    made = METRICS[metric].make(GraphDataset("x", "node", [], [], [], 1, channels, None, loss, metric))
    for piece in pieces:
        METRICS[metric].update(made, piece)
    return float(made.compute())


def seen_of(prediction: Tensor, target: Tensor) -> Judged:
    return Judged(prediction, target, torch.arange(len(target)), len(target))


def in_two(seen: Judged) -> list[Judged]:
    half = len(seen.target) // 3
    return [seen_of(seen.prediction[:half], seen.target[:half]), seen_of(seen.prediction[half:], seen.target[half:])]


def pairs_in_order(scores: Tensor, labels: Tensor) -> float:
    """The area under the curve: how often a yes has a higher score than a no, equal scores counting half."""
    won = [float(a > b) + 0.5 * float(a == b) for a, b in itertools.product(scores[labels == 1], scores[labels == 0])]
    return sum(won) / len(won)


def precision_at_yes(scores: Tensor, labels: Tensor) -> float:
    return sum(float(labels[scores >= s].float().mean()) for s in scores[labels == 1]) / float(labels.sum())


@pytest.mark.parametrize(
    "scale", [0.1, 1.0, 30.0]
)  # small logits look like probabilities, large ones are equal in float32
@pytest.mark.parametrize("channels", [1, 4])
def test_ranking_metrics(scale: float, channels: int) -> None:
    scores = scale * torch.randn(40, channels)
    labels = (torch.rand(40, channels) < 0.4).float()
    for metric, one in (("roc_auc", pairs_in_order), ("average_precision", precision_at_yes)):
        expected = sum(one(scores[:, k], labels[:, k]) for k in range(channels)) / channels
        seen = seen_of(scores, labels)
        for pieces in ([seen], in_two(seen)):
            assert measured(metric, "binary_cross_entropy", channels, pieces) == pytest.approx(expected, rel=1e-5)


def test_accuracies() -> None:
    target = torch.tensor([0] * 6 + [1] * 2)
    guess = torch.tensor([0, 0, 0, 0, 0, 2, 0, 1])
    seen = seen_of(F.one_hot(guess, 3).float(), target)
    for pieces in ([seen], in_two(seen)):
        assert measured("accuracy", "cross_entropy", 3, pieces) == pytest.approx(6 / 8)
        assert measured("weighted_accuracy", "cross_entropy", 3, pieces) == pytest.approx((5 / 6 + 1 / 2) / 2)


def test_errors() -> None:
    seen = Judged(torch.zeros(4, 1), torch.tensor([[1.0], [3.0], [3.0], [-3.0]]), torch.tensor([0, 1, 1, 1]), 2)
    assert measured("mae", "l1", 1, [seen]) == pytest.approx(10 / 4)
    assert measured("log10_mse", "mse", 1, [seen]) == pytest.approx(torch.tensor(28 / 4).log10().item())
    assert measured("log10_mse", "mse_by_graph", 1, [seen]) == pytest.approx(torch.tensor((1 + 9) / 2).log10().item())


@pytest.mark.parametrize(("value", "word"), [(0.0, "positive"), (1.0, "negative")])
def test_labels_that_leave_the_metric_undefined(value: float, word: str) -> None:
    data = one_graph()
    check_labels(data)
    data.val[0].y[data.val[0].mask] = value
    with pytest.raises(ValueError, match=f"roc_auc is not defined on val of lonely: it has no {word} label"):
        check_labels(data)


def test_a_process_without_items_changes_nothing() -> None:
    nothing: Any = seen_of(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    seen = seen_of(torch.eye(3), torch.tensor([0, 1, 1]))
    for metric in ("accuracy", "weighted_accuracy"):
        alone = measured(metric, "cross_entropy", 3, [seen])
        assert measured(metric, "cross_entropy", 3, [nothing, seen, nothing]) == alone
