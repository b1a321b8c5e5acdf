"""SwAV's own promises."""

import math

import pytest
import torch

from phenogroups.data.batches import Batch
from phenogroups.methods import SwAV, swav


@pytest.fixture
def batch() -> Batch:
    views = torch.randn(2, 40, 6, generator=torch.Generator().manual_seed(0))
    return Batch(tuple(views), torch.ones(40, dtype=torch.long), torch.arange(40))


@pytest.fixture
def codes(monkeypatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Scores and codes of every call of Sinkhorn."""
    seen = []

    def recorded(scores, epsilon, comm):
        seen.append((scores, sinkhorn(scores, epsilon, comm=comm)))
        return seen[-1][1]

    sinkhorn = swav.sinkhorn
    monkeypatch.setattr(swav, "sinkhorn", recorded)
    return seen


def test_codes_of_a_batch_are_balanced(batch, codes):
    torch.manual_seed(0)
    method = SwAV(n_subgroups=4)
    network = method.build((6,))
    with torch.no_grad():  # a prototype in the midst of all, which is nearest to most
        middle = network.heads["projection"](network.encoder(batch.views[0])).mean(0)
        network.heads["prototypes"].weight[2] = middle / middle.norm()
    method.losses(network, batch, None)
    assert len(codes) == 2
    for scores, q in codes:
        assert (scores.argmax(1) == 2).sum() > 30
        torch.testing.assert_close(q.sum(0), torch.full((4,), 10.0), atol=1e-3, rtol=0)
        torch.testing.assert_close(q.sum(1), torch.ones(40))
        assert not q.requires_grad


def test_loss_equals_a_double_loop(batch, codes):
    torch.manual_seed(0)
    method = SwAV(n_subgroups=3, temperature=0.2)
    network = method.build((6,)).eval()
    with torch.no_grad():
        found = method.losses(network, batch, None)["swapped_prediction"].item()
        cosines = []
        for view in batch.views:
            h = network.heads["projection"](network.encoder(view))
            cosines.append([[h_i @ c / h_i.norm() / c.norm() for c in network.heads["prototypes"].weight] for h_i in h])
    torch.testing.assert_close(codes[0][0], torch.tensor(cosines[0]))  # codes are made of scores, not of probabilities
    total = 0.0
    for (_, q), other in zip(codes, (cosines[1], cosines[0]), strict=True):
        for i in range(40):
            normaliser = sum(math.exp(s / 0.2) for s in other[i])
            total -= sum(q[i, k].item() * math.log(math.exp(other[i][k] / 0.2) / normaliser) for k in range(3))
    assert found == pytest.approx(total / 80, rel=1e-4)


def test_prototypes_have_length_one_at_every_step_and_still_learn(features, monkeypatch):
    seen = []
    losses = SwAV.losses

    def recorded(method, network, batch, beliefs):
        seen.append(network.heads["prototypes"].weight.detach().clone())
        return losses(method, network, batch, beliefs)

    monkeypatch.setattr(SwAV, "losses", recorded)
    method = SwAV(epochs=2, steps=3).fit(features)
    for weight in (*seen, method.network_.heads["prototypes"].weight):
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(2))
    assert not torch.equal(seen[0], seen[-1])
