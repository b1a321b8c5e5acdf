"""Fine-tuning: under fixed beliefs, judged by subjects who were not learned from, undone where it does not help."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import log_loss

from phenogroups.methods import Classifier, DeepUCSL, SimCLR
from phenogroups.methods import deep as methods_deep
from phenogroups.networks.encoders import build_encoder
from phenogroups.training import fine_tuning
from phenogroups.training.fine_tuning import balanced_log_losses, hold_out, is_better

QUICK = {"epochs": 2, "steps": 3, "batch_size": 32, "fine_tune": True, "encoder": "light"}


@pytest.fixture(scope="module")
def weights(images, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("weights") / "light.safetensors"
    torch.manual_seed(0)
    save_file(build_encoder("light", images.input_shape).state_dict(), path)
    return str(path)


@pytest.fixture
def judged(monkeypatch):
    """The judge's word, epoch by epoch, in place of the true one."""

    def say(*losses: float) -> None:
        left = iter(losses)
        monkeypatch.setattr(fine_tuning, "balanced_log_losses", lambda p, diagnosis: np.full(len(p), next(left)))

    return say


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())


def test_what_does_not_help_is_undone(images, weights, judged):
    judged(0.5, 0.6, 0.5)
    method = DeepUCSL(weights=weights, restarts=1, **QUICK).fit(images)
    assert same(method.frozen_encoder_, build_encoder("light", images.input_shape, weights))
    assert "did not improve the diagnosis" in method.remarks()[0]
    assert "log-loss 0.500 before, 0.500 after" in method.remarks()[0]


def test_the_best_epoch_is_kept_whole(images, weights, judged, tmp_path):
    judged(0.5, 0.4, 0.45)
    method = DeepUCSL(weights=weights, restarts=1, **QUICK).fit(images)
    assert not same(method.frozen_encoder_, build_encoder("light", images.input_shape, weights))
    assert "fine-tuned for 1 epoch:" in method.remarks()[0]
    assert not any(weight.requires_grad for weight in method.frozen_encoder_.parameters())
    state = {name: value.clone() for name, value in method.state().items()}
    again = DeepUCSL(**method.get_params()).restore(images.input_shape, state)
    np.testing.assert_array_equal(again.predict_subgroup_proba(images), method.predict_subgroup_proba(images))


def test_beliefs_are_those_of_the_frozen_encoder(images, weights, monkeypatch):
    """Every loss of the fine-tuning is under one q, which no E-step has touched since."""
    seen, tune = [], methods_deep.fine_tune

    def watched(method, encoder, network, beliefs, *arguments):
        before, losses = beliefs.q.clone(), type(method).losses

        def noticed(self, network, batch, beliefs):
            seen.append(torch.equal(beliefs.q, before))
            return losses(self, network, batch, beliefs)

        monkeypatch.setattr(type(method), "losses", noticed)
        monkeypatch.setattr(type(method), "e_step", lambda *_: pytest.fail("an E-step"))
        try:
            return tune(method, encoder, network, beliefs, *arguments)
        finally:
            monkeypatch.undo()

    monkeypatch.setattr(methods_deep, "fine_tune", watched)
    DeepUCSL(weights=weights, restarts=1, **QUICK).fit(images)
    assert len(seen) > 0
    assert all(seen)


def test_same_seed_same_bits(images, weights):
    first, second = (Classifier(weights=weights, **QUICK).fit(images) for _ in range(2))
    assert first.fine_tuning_[-1]["held_out_loss"] == second.fine_tuning_[-1]["held_out_loss"]
    np.testing.assert_array_equal(first.transform(images), second.transform(images))


def test_who_tells_no_diagnosis_is_not_fine_tuned(images, weights):
    method = SimCLR(weights=weights, **QUICK).fit(images)
    assert method.fine_tuning_ == []
    assert "does not tell the diagnosis" in method.remarks()[0]


def test_judges_are_a_tenth_of_either_class():
    diagnosis = np.repeat([0, 1], [200, 40])
    learn, judge = hold_out(diagnosis, seed=3)
    assert np.bincount(diagnosis[judge]).tolist() == [20, 4]
    assert sorted([*learn, *judge]) == list(range(240))
    assert not np.array_equal(judge, hold_out(diagnosis, seed=4)[1])
    with pytest.raises(ValueError, match=r"two subjects of either class.*Received: 5, 1"):
        hold_out(np.array([0] * 5 + [1]), seed=0)


def test_luck_is_not_enough():
    before = np.ones(20)
    assert is_better(before - 0.1, before)
    assert not is_better(before, before)
    rng = np.random.default_rng(0)
    assert not is_better(before - rng.normal(0.05, 1, 20), before)
    assert is_better(before - rng.normal(0.5, 0.2, 20), before)


def test_the_loss_is_scikit_learns_with_balanced_weights():
    rng = np.random.default_rng(0)
    p, y = rng.random(30), np.arange(30) % 3 // 2
    weight = np.where(y == 1, 1 / (y == 1).sum(), 1 / (y == 0).sum())
    assert balanced_log_losses(p, y).mean() == pytest.approx(log_loss(y, p, sample_weight=weight))
