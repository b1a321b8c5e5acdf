"""One file per method of the paper; `METHODS` is their table of contents."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phenogroups.data.augment import Augmentation
from phenogroups.data.untrusted import check_types, shortened
from phenogroups.methods.autoencoder import Autoencoder
from phenogroups.methods.base import MEANS, Method
from phenogroups.methods.byol import BYOL
from phenogroups.methods.classifier import Classifier
from phenogroups.methods.consensus import Consensus
from phenogroups.methods.deep import DeepMethod
from phenogroups.methods.deep_cluster import DeepCluster
from phenogroups.methods.deep_ucsl import PAPER, DeepUCSL
from phenogroups.methods.foundation import Foundation
from phenogroups.methods.gaussian_mixture import PlainGaussianMixture
from phenogroups.methods.hydra import HYDRA
from phenogroups.methods.kmeans import PlainKMeans
from phenogroups.methods.mixture_of_experts import MixtureOfExperts
from phenogroups.methods.pcl import PCL
from phenogroups.methods.prediction import Prediction
from phenogroups.methods.scan import SCAN
from phenogroups.methods.simclr import SimCLR
from phenogroups.methods.supcon import SupCon
from phenogroups.methods.supervised import SupervisedSubgroups
from phenogroups.methods.swav import SwAV
from phenogroups.methods.ucsl import UCSL
from phenogroups.methods.vae import VAE
from phenogroups.methods.vae_ucsl import VAEUCSL
from phenogroups.methods.ws_deep_cluster import WSDeepCluster
from phenogroups.training.run import RunError, read_recipe, read_tensors

MORPHO = {"augmentation": "digits_morpho"}  # thinner and bolder strokes too, so that boldness is not learned

METHODS: dict[str, Callable[..., Method]] = {
    "kmeans": PlainKMeans,
    "gaussian_mixture": PlainGaussianMixture,
    "deep_cluster": DeepCluster,
    "pcl": PCL,
    "morpho_pcl": partial(PCL, **MORPHO),
    "byol": BYOL,
    "scan": SCAN,
    "swav": SwAV,
    "simclr": SimCLR,
    "morpho_simclr": partial(SimCLR, **MORPHO),
    "autoencoder": Autoencoder,
    "vae": VAE,
    "mixture_of_experts": MixtureOfExperts,
    "classifier": Classifier,
    "supcon": SupCon,
    "morpho_supcon": partial(SupCon, **MORPHO),
    "foundation": Foundation,
    "ucsl": UCSL,
    "ucsl_max_margin": partial(UCSL, maximization="max_margin"),
    "hydra": HYDRA,
    "vae_ucsl": VAEUCSL,
    "ws_deep_cluster": WSDeepCluster,
    "deep_ucsl": DeepUCSL,
    "deep_ucsl_paper": partial(DeepUCSL, **PAPER),
    "deep_ucsl_paper_soft": partial(DeepUCSL, **PAPER, pseudo_labels="soft"),
    "deep_ucsl_paper_hard": partial(DeepUCSL, **PAPER, pseudo_labels="hard"),
    "deep_ucsl_paper_without_sinkhorn": partial(DeepUCSL, **{**PAPER, "clusterer": "kmeans"}),
    "consensus": Consensus,
    "supervised_upper_bound": SupervisedSubgroups,
}

__all__ = [
    "BYOL",
    "HYDRA",
    "METHODS",
    "PCL",
    "SCAN",
    "UCSL",
    "VAE",
    "VAEUCSL",
    "Autoencoder",
    "Classifier",
    "Consensus",
    "DeepCluster",
    "DeepMethod",
    "DeepUCSL",
    "Foundation",
    "Method",
    "MixtureOfExperts",
    "PlainGaussianMixture",
    "PlainKMeans",
    "Prediction",
    "SimCLR",
    "SupCon",
    "SupervisedSubgroups",
    "SwAV",
    "WSDeepCluster",
    "build_method",
    "load",
    "name_of",
    "settings_of",
]


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """A method by its name, with settings that override its defaults; says which names there are."""
    if name not in METHODS:
        raise ValueError(f"Expected a method among {', '.join(METHODS)}. Received: {shortened(name)}.")
    known = [f.name for f in fields(METHODS[name]())]
    strange = [key for key in settings if key not in known]
    if strange:
        listed = ", ".join(shortened(key, quoted=False) for key in strange[:5])
        raise ValueError(f"Expected settings of {name} among {', '.join(known)}. Received: {listed}.")
    # `settings` are those of the runs of a consensus, which come through this door themselves
    given = {key: value if key == "settings" else _from_json(value) for key, value in settings.items()}
    method = METHODS[name](**given)
    method.check_settings()
    return method


def settings_of(method: Method) -> dict[str, Any]:
    """The settings as JSON can hold them; an estimator given as a setting is named, not stored."""
    given = method.get_params(deep=False)
    if isinstance(method, Consensus):
        given["settings"] = method.run_settings()
    return json.loads(json.dumps(given, default=_to_json))


def name_of(method: Method) -> str:
    """Its name in METHODS; a preset goes by the name of its class, and its settings tell the rest."""
    for name, make in METHODS.items():
        if make is type(method):
            return name
    raise ValueError(f"Expected a method among {', '.join(METHODS)}. Received: {type(method).__name__}. Add it there.")


def load(folder: str | Path) -> Method:
    """The fitted method of a run folder, ready to predict."""
    recipe = read_recipe(folder)
    try:
        method = build_method(recipe["method"], recipe["settings"])  # before the larger file is read
        tensors = read_tensors(folder, recipe)
        _refuse_broken(tensors)
        return method.restore(tuple(recipe["input_shape"]), tensors)
    except RunError:
        raise
    except Exception as error:  # libraries raise whatever they like on a stranger's sizes and names
        said = shortened(error, quoted=False, most=2000)
        raise RunError(f"Expected recipe and model of {folder} to fit together. Received: {said}") from error


def _refuse_broken(tensors: Mapping[str, Tensor]) -> None:
    """A NaN would put everybody into the first subgroup without a word; only an empty subgroup has no mean."""
    for name, tensor in tensors.items():
        if not name.endswith(MEANS) and tensor.is_floating_point() and torch.isnan(tensor).any():
            raise ValueError(f"Expected numbers in {name}. Received: NaN.")


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else repr(value)


def _from_json(value: Any) -> Any:
    """A dict is an augmentation, the only setting with parts of its own."""
    if not isinstance(value, dict):
        return tuple(value) if isinstance(value, list) else value
    strange = [key for key in value if key not in {f.name for f in fields(Augmentation)}]
    if strange:
        listed = ", ".join(shortened(key, quoted=False) for key in strange[:5])
        raise ValueError(f"Expected an augmentation's settings. Received: {listed}.")
    augmentation = Augmentation(**value)
    check_types(augmentation)
    return augmentation
