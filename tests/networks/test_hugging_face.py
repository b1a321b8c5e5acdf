"""Models of Hugging Face as encoders: tiny random ones, saved by the tests, as no hub is reached from here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from phenogroups.data.cohort import Cohort
from phenogroups.data.untrusted import as_bytes, from_bytes
from phenogroups.methods import DeepUCSL, Foundation, load, name_of, settings_of
from phenogroups.networks.encoders import build_encoder
from phenogroups.training.run import write_model

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'phenogroups[foundation]'")

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
MEAN, DEVIATION = [0.2, 0.3, 0.4], [0.5, 0.6, 0.7]
PROCESSOR = {"do_normalize": True, "image_mean": MEAN, "image_std": DEVIATION, "size": {"height": 24, "width": 24}}
QUICK = {"epochs": 2, "steps": 2, "batch_size": 32, "restarts": 1, "augmentation": "none"}


def save(model, folder: Path, processor: dict | None = PROCESSOR) -> str:
    # its bars of progress are written to nobody
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"hf:{folder}"


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(**TINY, image_size=24, patch_size=8)
    return transformers.ViTModel(config).eval()


@pytest.fixture(scope="module")
def name(vit, tmp_path_factory) -> str:
    return save(vit, tmp_path_factory.mktemp("hub") / "vit")


@pytest.fixture(scope="module")
def unit(images) -> Cohort:
    return Cohort(images.inputs.clip(0, 1), images.diagnosis, truth=images.truth)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    """Repeated, resized and standardised."""
    x = x.repeat(1, 3 // x.shape[1], 1, 1)
    x = torch.nn.functional.interpolate(x, (24, 24), mode="bilinear", antialias=True)
    return torch.stack([(x[:, c] - MEAN[c]) / DEVIATION[c] for c in range(3)], dim=1)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 40, 30), (3, 24, 24)])
def test_the_embedding_is_the_models_pooled_output(vit, name, shape):
    x = torch.rand(4, *shape)
    encoder = build_encoder(name, shape).eval()
    expected = vit(pixel_values=by_hand(x)).pooler_output
    torch.testing.assert_close(encoder(x), expected)
    assert encoder.dim == expected.shape[1] == 32


@torch.no_grad()
def test_a_pooler_without_weights_is_not_trusted(vit, tmp_path):
    bare = transformers.ViTModel(vit.config, add_pooling_layer=False)
    bare.load_state_dict({key: value for key, value in vit.state_dict().items() if not key.startswith("pooler")})
    x = torch.rand(4, 3, 24, 24)
    found = build_encoder(save(bare, tmp_path), (3, 24, 24)).eval()(x)
    torch.testing.assert_close(found, vit(pixel_values=by_hand(x)).last_hidden_state[:, 0])


@torch.no_grad()
def test_of_a_model_of_images_and_text_the_half_that_sees_is_taken(tmp_path):
    text = {**TINY, "vocab_size": 20, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    config = transformers.CLIPConfig(text_config=text, vision_config={**TINY, "image_size": 24, "patch_size": 8})
    clip = transformers.CLIPModel(config).eval()
    x = torch.rand(4, 3, 24, 24)
    found = build_encoder(save(clip, tmp_path), (3, 24, 24)).eval()(x)
    torch.testing.assert_close(found, clip.vision_model(pixel_values=by_hand(x)).pooler_output)


@torch.no_grad()
def test_a_masked_autoencoder_sees_whole_images(tmp_path):
    config = transformers.ViTMAEConfig(**TINY, image_size=24, patch_size=8, mask_ratio=0.0)
    model = transformers.ViTMAEModel(config).eval()
    x = torch.rand(4, 3, 24, 24)
    encoder = build_encoder(save(model, tmp_path), (3, 24, 24)).eval()
    torch.testing.assert_close(encoder(x), model(pixel_values=by_hand(x)).last_hidden_state[:, 0], rtol=1e-4, atol=1e-4)
    assert torch.equal(encoder(x), encoder(x))


@torch.no_grad()
def test_a_convolutional_network_is_pooled_too(tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetModel(config).eval()
    x = torch.rand(4, 3, 24, 24)
    found = build_encoder(save(model, tmp_path), (3, 24, 24)).eval()(x)
    torch.testing.assert_close(found, model(pixel_values=by_hand(x)).last_hidden_state.mean((2, 3)))


def test_wrong_choices_are_explained(name, vit, tmp_path, unit):
    with pytest.raises(ValueError, match=r"1 or 3 channels.*\(1, 8, 8, 8\)"):
        build_encoder(name, (1, 8, 8, 8))
    with pytest.raises(ValueError, match=r"Expected no weights beside"):
        build_encoder(name, (1, 16, 16), "imagenet")
    with pytest.raises(ValueError, match=r"Expected a vision model of Hugging Face.*folder that holds these files"):
        build_encoder(f"hf:{tmp_path / 'nowhere'}", (1, 16, 16))
    with pytest.raises(ValueError, match=r"preprocessor_config.json"):
        build_encoder(save(vit, tmp_path / "bare", None), (1, 16, 16))
    with pytest.raises(ValueError, match=r"intensity 'unit'.*Received: values from 0 to 255"):
        DeepUCSL(encoder=name, **QUICK).fit(Cohort(255 * (unit.inputs > 0), unit.diagnosis))


def test_pickled_weights_are_refused(vit, tmp_path):
    folder = Path(save(vit, tmp_path / "pickled").removeprefix("hf:"))
    torch.save(vit.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="safetensors"):
        build_encoder(f"hf:{folder}", (1, 16, 16))


def test_code_of_a_model_is_never_run(vit, tmp_path):
    folder = Path(save(vit, tmp_path / "remote").removeprefix("hf:"))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"},
        "_attn_implementation": "evil/kernel",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('executed')")
    encoder = build_encoder(f"hf:{folder}", (1, 16, 16))
    assert type(encoder.model).__name__ == "ViTModel"
    assert "evil" not in json.dumps(from_bytes(encoder.description))
    planted = as_bytes({**from_bytes(encoder.description), "config": config})  # as in a model file of somebody
    saved = {**encoder.state_dict(), "description": planted}
    assert "evil" not in str(build_encoder("hf:", (1, 16, 16), None, saved).model.config)
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "evil"}))
    with pytest.raises(ValueError, match="Expected a vision model"):
        build_encoder(f"hf:{folder}", (1, 16, 16))


def test_frozen_it_stays_the_model_that_was_given(vit, name, unit):
    method = DeepUCSL(encoder=name, **QUICK).fit(unit)
    with torch.no_grad():
        expected = vit(pixel_values=by_hand(torch.tensor(unit.inputs).float())).pooler_output
        expected = method.network_.encoder(expected)
    np.testing.assert_allclose(method.transform(unit), expected, atol=1e-4)


def test_a_run_folder_is_complete_without_the_model_it_came_from(vit, unit, tmp_path):
    """Trained throughout, then loaded in a new process, with the original folder gone and the hub forbidden."""
    name = save(vit, tmp_path / "hub")
    method = DeepUCSL(encoder=name, fine_tune="throughout", **QUICK).fit(unit)
    before, after = vit.state_dict(), method.network_.encoder.model.state_dict()
    assert all((after[key] != value).any() for key, value in before.items() if key.endswith("dense.weight"))
    run = written(method, unit, tmp_path / "run")
    shutil.rmtree(tmp_path / "hub")
    np.save(tmp_path / "inputs.npy", unit.inputs)
    code = (
        "import sys, numpy, phenogroups; run, inputs, out = sys.argv[1:];"
        "numpy.save(out, phenogroups.load(run).predict_subgroup_proba(numpy.load(inputs)))"
    )
    # the path too: an interpreter started here may know of packages by it alone
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    files = [str(run), str(tmp_path / "inputs.npy"), str(tmp_path / "found.npy")]
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", code, *files], check=True, env=environment)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), method.predict_subgroup_proba(unit), atol=1e-6)


def test_foundation_embeds_by_it(vit, unit, tmp_path):
    method = Foundation(encoder=save(vit, tmp_path / "hub")).fit(unit)
    with torch.no_grad():
        expected = vit(pixel_values=by_hand(torch.tensor(unit.inputs).float())).pooler_output
    np.testing.assert_allclose(method.transform(unit), expected, atol=1e-5)
    run = written(method, unit, tmp_path / "run")
    shutil.rmtree(tmp_path / "hub")
    again = load(run)
    np.testing.assert_array_equal(again.predict_subgroup_proba(unit), method.predict_subgroup_proba(unit))
    np.testing.assert_array_equal(again.predict_proba(unit), method.predict_proba(unit))


def written(method, cohort: Cohort, folder: Path) -> Path:
    recipe = {"method": name_of(method), "settings": settings_of(method), "input_shape": list(cohort.input_shape)}
    folder.mkdir()
    write_model(folder, recipe, method.state())
    return folder
