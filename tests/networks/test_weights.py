"""Weights from elsewhere: ResNet-18 as torchvision names and computes it, and files for every encoder."""

import re
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from phenogroups.data import embeddings
from phenogroups.data.cohort import Cohort
from phenogroups.methods import Classifier, DeepUCSL
from phenogroups.networks import weights as weights_file
from phenogroups.networks.encoders import build_encoder


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        short = x if self.downsample is None else self.downsample(x)
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + short).relu()


class ResNet18(nn.Module):
    """He et al. 2016, by the names of torchvision's file."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.fc = nn.Linear(512, 1000)

    def embed(self, x):
        x = torch.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


@pytest.fixture(scope="module")
def reference() -> ResNet18:
    torch.manual_seed(0)
    network = ResNet18()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after a training
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor, 0.5, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network.eval()


@pytest.fixture(scope="module")
def resnet_file(reference, tmp_path_factory) -> str:
    """Without the counters, as torchvision's own file."""
    path = tmp_path_factory.mktemp("resnet") / "resnet18.pth"
    state = {key: value for key, value in reference.state_dict().items() if not key.endswith("num_batches_tracked")}
    assert len(state) == 102  # as many as torchvision's file has
    torch.save(state, path)
    return str(path)


@torch.no_grad()
def test_resnet18_computes_what_torchvisions_does(reference, resnet_file):
    x = torch.randn(3, 3, 64, 48)
    found = build_encoder("resnet18", (3, 64, 48), resnet_file).eval()(x)
    torch.testing.assert_close(found, reference.embed(x), rtol=1e-4, atol=1e-4)
    assert found.std() > 0.01


@torch.no_grad()
def test_a_grey_image_is_seen_as_its_three_copies(reference, resnet_file):
    x = torch.randn(3, 1, 64, 64)
    found = build_encoder("resnet18", (1, 64, 64), resnet_file).eval()(x)
    torch.testing.assert_close(found, reference.embed(x.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-4)


def test_imagenet_is_the_file_whose_name_holds_its_checksum(reference, monkeypatch):
    asked = {}

    def downloaded(url, **settings):
        asked.update(settings, url=url)
        return reference.state_dict()

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", downloaded)
    encoder = build_encoder("resnet18", (3, 32, 32), "imagenet")
    assert torch.equal(encoder.layers.conv1.weight, reference.conv1.weight)
    assert re.search(r"resnet18-[0-9a-f]{8}\.pth$", asked["url"])
    assert asked["check_hash"]
    assert asked["weights_only"]
    assert encoder.expects == "imagenet"
    encoder.check_inputs(np.random.default_rng(0).normal(size=(2, 3, 32, 32)))
    with pytest.raises(ValueError, match=r"intensity 'imagenet'.*Received: values from 0 to 255"):
        encoder.check_inputs(np.array([0, 255]))


def test_without_a_network_a_file_is_asked_for(monkeypatch):
    def fail(*_, **__):
        raise weights_file.URLError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fail)
    with pytest.raises(ValueError, match=r"resnet18-f37072fd.pth.*no route.*give its path as weights"):
        build_encoder("resnet18", (3, 32, 32), "imagenet")


@pytest.mark.parametrize(("name", "shape"), [("resnet18", (1, 32, 32, 32)), ("light", (3, 32, 32)), ("mlp", (5,))])
def test_imagenet_is_for_resnet18_on_images(name, shape):
    with pytest.raises(ValueError, match=r"Expected the encoder 'resnet18' on images.*Give a file"):
        build_encoder(name, shape, "imagenet")


CASES = [
    ("paper", (1, 8, 8)),
    ("light", (2, 16, 16)),
    ("light", (1, 8, 8, 8)),
    ("resnet18", (1, 32, 32, 32)),
    ("densenet121_projected", (1, 32, 32, 32)),
    ("mlp", (5,)),
]


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items())


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_file_fills_every_encoder(name, shape, tmp_path):
    source = build_encoder(name, shape)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    assert same_weights(source, build_encoder(name, shape, str(tmp_path / "weights.safetensors")))


@pytest.mark.parametrize("prefix", ["", "module.", "encoder.", "backbone.", "module.encoder.", "model.backbone."])
@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
def test_wrappings_of_a_checkpoint_are_taken_off(prefix, nested, tmp_path):
    source = build_encoder("light", (1, 16, 16))
    state = {prefix + key: value for key, value in source.layers.state_dict().items()}
    torch.save(state if nested is None else {nested: state, "epoch": 3, "optimizer": {}}, tmp_path / "checkpoint.pth")
    assert same_weights(source, build_encoder("light", (1, 16, 16), str(tmp_path / "checkpoint.pth")))


def test_heads_beside_the_encoder_are_left_behind(tmp_path):
    source = build_encoder("light", (1, 16, 16))
    state = {f"module.encoder.{key}": value for key, value in source.layers.state_dict().items()}
    torch.save({**state, "module.head.weight": torch.zeros(2, 128)}, tmp_path / "checkpoint.pth")
    assert same_weights(source, build_encoder("light", (1, 16, 16), str(tmp_path / "checkpoint.pth")))


def test_the_classifier_of_a_whole_densenet_is_dropped(tmp_path):
    from monai.networks.nets.densenet import DenseNet121

    whole = DenseNet121(spatial_dims=2, in_channels=3, out_channels=14)
    torch.save(whole.state_dict(), tmp_path / "densenet.pth")
    encoder = build_encoder("densenet121", (1, 32, 32), str(tmp_path / "densenet.pth"))
    assert torch.equal(encoder.layers.features.conv0.weight, whole.features.conv0.weight.sum(1, keepdim=True))
    with pytest.raises(ValueError, match=r"missing \(class_layers.out.0.weight.*unexpected \(class_layers.out.weight"):
        build_encoder("densenet121_projected", (1, 32, 32), str(tmp_path / "densenet.pth"))


def test_a_wrong_file_is_explained(tmp_path, resnet_file):
    with pytest.raises(ValueError, match=r"encoder 'light' in .*missing \(0.weight.*unexpected \(conv1"):
        build_encoder("light", (3, 32, 32), resnet_file)
    with pytest.raises(ValueError, match=r"1 of another shape \(conv1.weight \(64, 3, 7, 7\) for \(64, 2, 7, 7\)\)"):
        build_encoder("resnet18", (2, 32, 32), resnet_file)
    with pytest.raises(ValueError, match="does not exist"):
        build_encoder("light", (3, 32, 32), str(tmp_path / "nowhere.pth"))
    for name in ("broken.pth", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"no weights")
        with pytest.raises(ValueError, match=r"Expected .*broken.* to hold tensors by name"):
            build_encoder("light", (3, 32, 32), str(tmp_path / name))
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    with pytest.raises(ValueError, match=r"tensors by name. Received: Tensor"):
        build_encoder("light", (3, 32, 32), str(tmp_path / "tensor.pth"))


def test_a_file_that_would_execute_is_refused(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")  # a pickled object, not a state_dict
    with pytest.raises(ValueError, match=r"nothing else.*state_dict\(\)"):
        build_encoder("light", (3, 32, 32), str(tmp_path / "module.pth"))


QUICK = {"epochs": 2, "steps": 3, "batch_size": 32}


@pytest.fixture(scope="module")
def pretrained(images, tmp_path_factory) -> tuple[Classifier, str]:
    """A model of this package, as the start of another."""
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    method = Classifier(**QUICK).fit(images)
    save_file({key: value.contiguous() for key, value in method.tensors().items()}, path)
    return method, str(path)


def test_a_frozen_encoder_stays_what_it_was(images, pretrained):
    before, path = pretrained
    method = DeepUCSL(weights=path, restarts=2, **QUICK).fit(images)
    assert same_weights(before.network_.encoder, method.frozen_encoder_)  # running statistics too
    assert not any(weight.requires_grad for weight in method.frozen_encoder_.parameters())
    table = Cohort(before.transform(images), images.diagnosis)  # what was trained was trained on its embeddings
    on_table = DeepUCSL(restarts=2, **QUICK).fit(table)
    np.testing.assert_allclose(method.predict_subgroup_proba(images), on_table.predict_subgroup_proba(table), atol=1e-5)


def test_a_maps_gradient_flows_through_a_frozen_encoder(images, pretrained):
    from phenogroups.evaluation.saliency import expected_gradients

    method = DeepUCSL(weights=pretrained[1], restarts=1, **QUICK).fit(images)
    found = expected_gradients(method, images.inputs[0], images.inputs[1:9], 0)
    assert found.shape == images.input_shape[1:]
    assert np.abs(found).max() > 0


def test_a_cohort_is_embedded_once_by_a_frozen_encoder(images, pretrained, monkeypatch):
    from phenogroups.training import embedding

    seen, see = [], embedding._embed_block
    monkeypatch.setattr(embedding, "_embed_block", lambda *a: seen.append(len(a[2])) or see(*a))
    monkeypatch.setattr(embeddings, "_store", ContextVar("store", default=embeddings.Memory()))  # noqa: B039
    DeepUCSL(weights=pretrained[1], **{**QUICK, "epochs": 4}).fit(images).predict(images)
    assert sum(seen) == len(images)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_the_backbone_learns_at_its_share_of_the_pace(images, pretrained, rate, monkeypatch):
    rates, step = [], torch.optim.Adam.step

    def observed(optimizer, *arguments, **named):
        rates.append([group["lr"] for group in optimizer.param_groups])
        return step(optimizer, *arguments, **named)

    monkeypatch.setattr(torch.optim.Adam, "step", observed)
    method = DeepUCSL(weights=pretrained[1], fine_tune="throughout", backbone_rate=rate, restarts=1, **QUICK).fit(
        images
    )
    for epoch in range(2):
        pace = method.learning_rate * method.learning_rate_factor(epoch)
        assert rates[3 * epoch] == pytest.approx([rate * pace, pace])
    assert not same_weights(pretrained[0].network_.encoder, method.network_.encoder)


def test_nothing_random_is_fine_tuned(images):
    with pytest.raises(ValueError, match=r"encoder with weights to fine-tune. Received: 'light'"):
        DeepUCSL(fine_tune=True, **QUICK).fit(images)


def test_a_rate_is_no_less_than_nothing():
    with pytest.raises(ValueError, match="backbone_rate of at least 0"):
        DeepUCSL(backbone_rate=-1.0).check_settings()


def test_a_loaded_model_needs_no_file_of_weights(images, tmp_path):
    source = build_encoder("light", images.input_shape)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    method = DeepUCSL(weights=str(tmp_path / "weights.safetensors"), restarts=1, **QUICK).fit(images)
    (tmp_path / "weights.safetensors").unlink()
    again = DeepUCSL(**method.get_params()).restore(images.input_shape, method.state())
    assert (again.transform(images) == method.transform(images)).all()
