"""The teacher that follows a student."""

import pickle

import pytest
import torch
from torch import nn

from phenogroups.networks.encoders import build_encoder
from phenogroups.networks.network import Teacher, projection


@pytest.fixture
def student():
    torch.manual_seed(0)
    encoder = build_encoder("light", (1, 16, 16))
    return encoder, projection(encoder.dim, norm=True)


def change(*modules: nn.Module) -> None:
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = tensor.data + 1


def test_a_teacher_starts_as_the_student_and_shares_nothing_with_it(student):
    teacher, x = Teacher(*student, decay=0.9).eval(), torch.randn(3, 1, 16, 16)
    encoder, head = (module.eval() for module in student)
    before = teacher(x)
    assert torch.equal(before, head(encoder(x)))
    change(encoder, head)
    assert torch.equal(teacher(x), before)


def test_a_teacher_moves_by_its_share_of_the_difference(student):
    teacher = Teacher(*student, decay=0.9)
    before = [weight.clone() for weight in teacher.parameters()]
    change(*student)
    teacher.update(*student)
    for was, now in zip(before, teacher.parameters(), strict=True):
        torch.testing.assert_close(now, was + 0.1)  # a tenth of the way to was + 1
    goals = [statistic for module in student for statistic in module.buffers()]
    for now, goal in zip(teacher.buffers(), goals, strict=True):
        assert torch.equal(now, goal)


def test_a_teacher_learns_by_no_gradient_and_can_be_pickled(student):
    teacher, x = Teacher(*student, decay=0.9), torch.randn(3, 1, 16, 16)
    assert not any(weight.requires_grad for weight in teacher.parameters())
    assert not teacher(x.requires_grad_()).requires_grad
    again = pickle.loads(pickle.dumps(teacher.eval()))
    assert torch.equal(again(x), teacher(x))
