import numpy as np
import ot
import pytest
import torch

from phenogroups.clustering.sinkhorn import sinkhorn


@pytest.mark.parametrize("sizes", [None, [0.2, 0.3, 0.5]])
def test_equals_pot(sizes):
    scores = torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = np.full(3, 1 / 3) if sizes is None else np.array(sizes)
    plan = ot.sinkhorn(np.full(50, 1 / 50), target, -scores.numpy(), reg=0.05, stopThr=1e-12, numItermax=10000)
    found = sinkhorn(scores, 0.05, None if sizes is None else torch.tensor(sizes, dtype=torch.float64), 10000, 1e-12)
    np.testing.assert_allclose(found.numpy(), plan * 50, atol=1e-8)


def test_rows_sum_to_one_and_columns_to_their_size():
    q = sinkhorn(torch.randn(200, 4, generator=torch.Generator().manual_seed(1)), 0.05, iterations=1000)
    torch.testing.assert_close(q.sum(1), torch.ones(200))
    torch.testing.assert_close(q.sum(0), torch.full((4,), 50.0), rtol=1e-3, atol=1e-2)


def test_survives_scores_that_underflow():
    scores = torch.tensor([[1e3, 0.0]] * 10)
    q = sinkhorn(scores, 0.05)
    assert torch.isfinite(q).all()
    torch.testing.assert_close(q.sum(0), torch.tensor([5.0, 5.0]), rtol=1e-3, atol=1e-3)
