"""BYOL's own promises."""

import math

import pytest
import torch

from phenogroups.data.batches import Batch
from phenogroups.methods import BYOL
from phenogroups.networks.network import teacher_of


@pytest.fixture
def batch() -> Batch:
    views = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(0))
    return Batch(tuple(views), torch.ones(9, dtype=torch.long), torch.arange(9))


def student(network):
    return network.encoder, network.heads["projection"]


def test_the_teacher_of_features_knows_their_scale(features, batch):
    network = BYOL().build((6,), 100 * features.inputs).eval()
    encoder, head = student(network)
    assert torch.equal(teacher_of(network)(batch.views[0]), head(encoder(batch.views[0])))


def test_loss_equals_a_double_loop_over_subjects_and_dimensions(batch):
    torch.manual_seed(0)
    method = BYOL()
    network = method.build((6,)).eval()
    encoder, head = student(network)
    for weight in teacher_of(network).parameters():  # another than the student, as it is after some steps
        weight.mul_(1.1).add_(0.01)
    with torch.no_grad():
        found = method.losses(network, batch, None)["alignment"].item()
        predicted = [network.heads["predictor"](head(encoder(view))).tolist() for view in batch.views]
        target = [teacher_of(network)(view).tolist() for view in batch.views]
    total = 0.0
    for a, b in ((0, 1), (1, 0)):
        for p, t in zip(predicted[a], target[b], strict=True):
            product = sum(x * y for x, y in zip(p, t, strict=True))
            total -= product / math.hypot(*p) / math.hypot(*t)
    assert found == pytest.approx(total / 18, rel=1e-5)


def test_the_student_learns_by_gradient_and_the_teacher_follows(batch):
    method = BYOL(decay=0.9)
    network = method.build((6,))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    before = [weight.clone() for weight in teacher_of(network).parameters()]
    method.losses(network, batch, None)["alignment"].backward()
    optimizer.step()
    for was, now in zip(before, teacher_of(network).parameters(), strict=True):
        assert now.grad is None
        assert torch.equal(now, was)
    method.after_step(network)
    goals = [weight for module in student(network) for weight in module.parameters()]
    for was, now, goal in zip(before, teacher_of(network).parameters(), goals, strict=True):
        assert goal.grad is not None
        assert not torch.equal(goal, was)
        torch.testing.assert_close(now, was + 0.1 * (goal - was))


@pytest.mark.parametrize(("decay", "same"), [(0.0, True), (0.9, False)])
def test_training_takes_the_teacher_along(features, decay, same):
    network = BYOL(epochs=1, steps=3, decay=decay).fit(features).network_
    goals = [weight for module in student(network) for weight in module.parameters()]
    pairs = zip(teacher_of(network).parameters(), goals, strict=True)
    assert all(torch.equal(now, goal) for now, goal in pairs) == same


def test_projections_do_not_collapse(images):
    """Of other patients they point elsewhere, though nothing in the loss asks for it."""
    method = BYOL(epochs=3, steps=10).fit(images)
    z = torch.tensor(method.transform(images.patients))
    h = torch.nn.functional.normalize(method.network_.heads["projection"](z), dim=1)
    assert (h @ h.T).mean() < 0.6
