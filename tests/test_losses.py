import itertools
import math

import pytest
import torch
from torch import nn

from phenogroups.losses import (
    balanced_cross_entropy,
    contrastive,
    experts_loss,
    gate_loss,
    info_nce,
    lower_bound,
    mixture_of_experts_logit,
)


@pytest.fixture
def setting():
    g = torch.Generator().manual_seed(0)
    n, k = 12, 3
    experts, gate = torch.randn(n, k, generator=g).double(), torch.randn(n, k, generator=g).double()
    q = torch.rand(n, k, generator=g).double().softmax(1)
    diagnosis = (torch.rand(n, generator=g) < 0.5).long()
    return experts, gate, q, diagnosis


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_experts_loss_equals_a_direct_sum(setting):
    experts, _, q, diagnosis = setting
    weights = torch.tensor([0.67, 0.33]).double()
    total = 0.0
    for i in range(len(q)):
        for k in range(3):
            p = sigmoid(experts[i, k])
            log = math.log(p) if diagnosis[i] == 1 else math.log(1 - p)
            total -= weights[diagnosis[i]].item() * q[i, k].item() * log
    assert experts_loss(experts, q, diagnosis, weights).item() == pytest.approx(total / len(q))


def test_gate_loss_equals_a_direct_sum(setting):
    _, gate, q, diagnosis = setting
    rows = [i for i in range(len(q)) if diagnosis[i] == 1]
    p = gate.exp() / gate.exp().sum(1, keepdim=True)
    expected = -sum(q[i, k].item() * math.log(p[i, k]) for i in rows for k in range(3)) / len(rows)
    assert gate_loss(gate, q, diagnosis.double()).item() == pytest.approx(expected)


def test_balanced_cross_entropy_is_the_mean_of_the_means_of_classes(setting):
    logits, labels = setting[0], torch.tensor([0] * 9 + [2] * 3)  # nobody of class 1
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    of_classes = [sum(-math.log(p[i, k]) for i in rows) / len(rows) for k, rows in ((0, range(9)), (2, range(9, 12)))]
    assert balanced_cross_entropy(logits, labels).item() == pytest.approx(sum(of_classes) / 2)
    assert balanced_cross_entropy(logits[:0], labels[:0]).item() == 0


def test_bound_is_below_the_likelihood_and_tight_at_the_posterior(setting):
    experts, gate, q, diagnosis = setting
    log_odds = mixture_of_experts_logit(experts, gate)
    sign = 2 * diagnosis - 1
    likelihood = nn.functional.logsigmoid(sign * log_odds).mean()
    assert lower_bound(experts, gate, q, diagnosis) < likelihood
    joint = gate.log_softmax(1) + nn.functional.logsigmoid(sign[:, None] * experts)
    posterior = joint.softmax(1)  # Eq. 3
    torch.testing.assert_close(lower_bound(experts, gate, posterior, diagnosis), likelihood)


def test_mixture_of_experts_is_the_paper_sum(setting):
    experts, gate, _, _ = setting
    direct = (experts.sigmoid() * gate.softmax(1)).sum(1)
    torch.testing.assert_close(mixture_of_experts_logit(experts, gate).sigmoid(), direct)


def test_an_exact_m_step_never_lowers_the_bound():
    """Appendix A: with Q frozen, maximising over the heads can only raise Eq. 4; with the E-step it climbs."""
    g = torch.Generator().manual_seed(1)
    z = torch.randn(80, 4, generator=g).double()
    diagnosis = (z[:, 0] + 0.5 * torch.randn(80, generator=g).double() > 0).long()
    experts, gate = nn.Linear(4, 2).double(), nn.Linear(4, 2).double()
    sign = (2 * diagnosis - 1)[:, None]
    bounds = []
    for _ in range(6):
        with torch.no_grad():  # E-step: Eq. 3
            q = (gate(z).log_softmax(1) + nn.functional.logsigmoid(sign * experts(z))).softmax(1)
        bounds.append(lower_bound(experts(z), gate(z), q, diagnosis).item())
        optimizer = torch.optim.LBFGS(
            [*experts.parameters(), *gate.parameters()], max_iter=30, line_search_fn="strong_wolfe"
        )

        def closure(optimizer=optimizer, q=q):
            optimizer.zero_grad()
            loss = -lower_bound(experts(z), gate(z), q, diagnosis)
            loss.backward()
            return loss

        optimizer.step(closure)  # pyright: ignore
        bounds.append(lower_bound(experts(z), gate(z), q, diagnosis).item())
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(bounds))
    assert bounds[-1] > bounds[0]


@pytest.mark.parametrize("only", [0, 1])
def test_no_nan_with_extreme_logits_or_one_class(only):
    experts = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
    gate = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
    q, diagnosis = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([only, only])
    patient = diagnosis.float()
    loss = (
        experts_loss(experts, q, diagnosis, torch.ones(2))
        + gate_loss(gate, q, patient)
        + gate_loss(gate, q, 1 - patient)
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(experts.grad).all()
    assert torch.isfinite(gate.grad).all()
    assert torch.isfinite(lower_bound(experts, gate, q, diagnosis))


def cosine(u, v):
    return sum(x * y for x, y in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)


def test_info_nce_equals_a_double_loop():
    a, b = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    views = torch.cat([a, b]).tolist()
    total = 0.0
    for i, view in enumerate(views):
        likeness = [0.0 if j == i else math.exp(cosine(view, other) / 0.2) for j, other in enumerate(views)]
        total -= math.log(likeness[(i + 5) % 10] / sum(likeness))
    assert info_nce(a, b, 0.2).item() == pytest.approx(total / 10)


def test_contrastive_equals_a_double_loop():
    a, b = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    labels = [0, 1, 0, 0, 2]  # the last is alone with its other view
    views = list(zip(torch.cat([a, b]).tolist(), labels * 2, strict=True))
    total = 0.0
    for i, (view, label) in enumerate(views):
        likeness = [0.0 if j == i else math.exp(cosine(view, other) / 0.2) for j, (other, _) in enumerate(views)]
        alike = [j for j, (_, other) in enumerate(views) if other == label and j != i]
        total -= sum(math.log(likeness[j] / sum(likeness)) for j in alike) / len(alike)
    assert contrastive(a, b, torch.tensor(labels), 0.2).item() == pytest.approx(total / 10)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("temperature", [0.1, 1e-3])
def test_identical_views_have_finite_gradients(value, temperature):
    a = torch.full((4, 3), value, requires_grad=True)
    b = torch.full((4, 3), value, requires_grad=True)
    loss = info_nce(a, b, temperature) + contrastive(a, b, torch.tensor([0, 0, 1, 1]), temperature)
    loss.backward()
    assert loss.item() == pytest.approx(2 * math.log(7), rel=1e-5)  # nothing tells seven others apart
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(b.grad).all()
