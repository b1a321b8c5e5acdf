"""A method is one file: written elsewhere, it is registered by being imported and works like any other."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from phenogroups import compare, load
from phenogroups.cli import main
from phenogroups.methods import METHODS, PlainKMeans, build_method, name_of, settings_of
from phenogroups.methods.documentation import describe
from phenogroups.methods.settings import AtLeast, Shape, check_limits, check_shapes

TOY = '''
"""Toy: patients are divided by the sign of a learned projection (nobody, never)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from phenogroups.losses import diagnosis_loss
from phenogroups.methods import DeepMethod
from phenogroups.methods.settings import AtLeast, Shape


@dataclass(frozen=True)
class Thresholds:
    center: Annotated[Tensor, Shape("dims")]
    centroids: Annotated[Tensor, Shape("subgroups", "dims")]


@dataclass(eq=False, repr=False)
class Toy(DeepMethod, name="toy", presets={"hasty_toy": {"epochs": 1}}):
    """
    Parameters
    ----------
    width
        Distance between the centroids.
    """

    width: Annotated[float, AtLeast(1)] = 2.0

    beliefs_type: ClassVar[type] = Thresholds
    e_step_each_epoch: ClassVar[bool] = False

    def heads(self, encoder, input_shape):
        return {"diagnosis": nn.Linear(encoder.dim, 1)}

    def losses(self, network, batch, beliefs):
        return {"classification": diagnosis_loss(network.heads["diagnosis"](network.encoder(batch.views[0])).squeeze(1),
                                                 batch.diagnosis)}

    def e_step(self, embedding, diagnosis, previous, epoch):
        center = embedding[diagnosis == 1].mean(0)
        places = torch.linspace(-1, 1, self.n_subgroups)[:, None] * self.width
        return Thresholds(center, places.expand(-1, len(center)).contiguous())

    def read(self, network, embedding, beliefs):
        distance = torch.cdist(embedding - beliefs.center, beliefs.centroids)
        ill = network.heads["diagnosis"](embedding).squeeze(1).sigmoid()
        return {"subgroup": (-distance).softmax(1), "diagnosis": ill}
'''


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A module with a method of its own, as a user would write it; forgotten afterwards."""
    folder, known = tmp_path_factory.mktemp("toy"), dict(METHODS)
    (folder / "toy_method.py").write_text(TOY)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("toy_method").Toy
    sys.path.remove(str(folder))
    del sys.modules["toy_method"]
    for name in METHODS.keys() - known.keys():
        del METHODS[name]


@pytest.fixture(scope="module")
def contract() -> ModuleType:
    """The tests that every method of this package passes."""
    spec = importlib.util.spec_from_file_location("contract", Path(__file__).with_name("test_contract.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["features", "images"])
def test_it_keeps_the_contract(toy, contract, kind, request, monkeypatch):
    name, cohort = "toy", request.getfixturevalue(kind)
    told, method = [], contract.quick(name, cohort)
    torch.manual_seed(3)
    before = (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    method.fit(cohort, progress=told.append)
    after = (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    wrong = {"settings": {"n_subgroups": 1}, "words": "n_subgroups of at least 2"}
    known = {"fit": (method, told, before, after), "fitted": method, "name": name, "cohort": cohort, **wrong}
    tests = [value for key, value in vars(contract).items() if key.startswith("test_")]
    assert len(tests) > 10
    for test in tests:
        wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
        with monkeypatch.context() as patch:
            test(**{key: patch if key == "monkeypatch" else known[key] for key in wanted})


def test_it_is_compared_discovered_loaded_and_predicts(toy, features, tmp_path):
    settings = {"epochs": 1, "steps": 2, "toy.width": 3.0}
    found = compare(features, ["toy", "hasty_toy", "kmeans"], tmp_path / "compare", seeds=1, settings=settings)
    assert list(found.cells["status"]) == ["finished"] * 3
    rows = pd.DataFrame(features.inputs, columns=list("abcdef")).assign(diagnosis=features.diagnosis)
    rows.to_csv(tmp_path / "subjects.csv", index=False)
    run, new, quick = tmp_path / "run", tmp_path / "new.csv", ["--set", "epochs=1", "steps=2"]
    assert main(["discover", str(tmp_path / "subjects.csv"), "--method", "toy", "--out", str(run), *quick]) == 0
    assert type(load(run)) is toy
    assert main(["predict", str(run), str(tmp_path / "subjects.csv"), "--out", str(new)]) == 0
    assert len(pd.read_csv(new)) == len(features)


def test_its_settings_limits_and_documentation_are_its_own(toy):
    assert name_of(toy()) == name_of(METHODS["hasty_toy"]()) == "toy"
    assert settings_of(build_method("hasty_toy", {"width": 3.0}))["epochs"] == 1
    with pytest.raises(ValueError, match=r"Expected width of at least 1. Received: 0.5."):
        build_method("toy", {"width": 0.5})
    with pytest.raises(ValueError, match="Expected epochs of at least 1"):  # as its parent says
        build_method("toy", {"epochs": 0})
    said = describe("hasty_toy")
    assert said.startswith("hasty_toy: Toy with epochs=1\n\nToy: patients are divided")
    assert "width : float, at least 1, default 2.0\n    Distance between the centroids." in said
    assert "batch_size : int, at least 2, default 256" in said


def test_a_name_belongs_to_one_class(toy, monkeypatch):
    with pytest.raises(ValueError, match=r"Received: 'toy' for .*Other, which is that of toy_method.Toy"):

        class Other(PlainKMeans, name="toy"):
            pass

    assert METHODS["toy"] is toy


def test_a_method_without_a_name_is_told_how_to_get_one():
    class Nameless(PlainKMeans):
        pass

    with pytest.raises(ValueError, match=r"Received: Nameless, which has no name. Define it with one: class MyMethod"):
        name_of(Nameless())


@dataclass(frozen=True)
class Learned:
    centroids: Annotated[Tensor, Shape("subgroups", "dims")]
    scale: Annotated[Tensor, Shape("dims")]
    free: Tensor


@pytest.mark.parametrize(
    ("centroids", "scale", "words"),
    [
        ((3, 5), (5,), "Expected centroids of shape"),
        ((2, 5), (4,), r"Expected scale of shape \(dims\), where dims is 5. Received: \(4,\)"),
        ((2,), (5,), "Expected centroids of shape"),
        ((2, 5, 1), (5,), "Expected centroids of shape"),
    ],
)
def test_shapes_are_checked_by_the_names_of_dimensions(centroids, scale, words):
    check_shapes(Learned(torch.zeros(2, 5), torch.zeros(5), torch.zeros(7)), subgroups=2)
    with pytest.raises(ValueError, match=words):
        check_shapes(Learned(torch.zeros(centroids), torch.zeros(scale), torch.zeros(7)), subgroups=2)


def test_limits_hold_for_none_and_for_subclasses():
    @dataclass
    class Parent:
        count: Annotated[int | None, AtLeast(1)] = None

    @dataclass
    class Child(Parent):
        count: int | None = 3

    check_limits(Parent())
    with pytest.raises(ValueError, match=r"Expected count of at least 1. Received: 0."):
        check_limits(Child(count=0))
