"""One method on one cohort, as its user writes it: python benchmarks/peer.py METHOD IN.npz OUT.npz SEED LIMIT.

Started by benchmarks/peers.py in the environment of phenogroups or in that of its peers, so nothing of either is
imported above. Each function below gets the inputs and the diagnosis of those trained on (1: patient), the inputs of
the patients to assign, the number of subgroups and a seed, and returns a subgroup of each; the statements of its body
are counted as lines of user code.
"""

import importlib
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# what is imported before the clock starts
MODULES = {
    "phenogroups": "phenogroups.methods", "sklearn": "sklearn.mixture", "clustpy": "clustpy.deep",
    "mlni": "mlni.hydra_clustering", "nidl": "nidl.estimators.ssl",
}  # fmt: skip
MANY = 2000  # patients
NEEDS_VISION = ("clustpy", "mlni", "nidl")
WITHOUT_PREDICTION = ("mlni_hydra",)  # given also whom to assign, and their rows instead of their inputs


def phenogroups_deep_ucsl(x, y, new, k, seed):
    from phenogroups import DeepUCSL

    return DeepUCSL(n_subgroups=k, seed=seed).fit(x, y).predict_subgroup(new)


def sklearn_kmeans(x, y, new, k, seed):
    from sklearn.cluster import KMeans

    patients = x[y == 1].reshape(-1, x[0].size)
    return KMeans(k, n_init=10, random_state=seed).fit(patients).predict(new.reshape(len(new), -1))


def sklearn_mixture(x, y, new, k, seed):
    from sklearn.mixture import GaussianMixture

    patients = x[y == 1].reshape(-1, x[0].size).astype(float)
    return GaussianMixture(k, random_state=seed).fit(patients).predict(new.reshape(len(new), -1))


def clustpy_dec(x, y, new, k, seed):
    from clustpy.deep import DEC

    patients = x[y == 1].reshape(-1, x[0].size)
    return DEC(k, **epochs(patients), random_state=seed).fit(patients).predict(new.reshape(len(new), -1))


def clustpy_dcn(x, y, new, k, seed):
    from clustpy.deep import DCN

    patients = x[y == 1].reshape(-1, x[0].size)
    return DCN(k, **epochs(patients), random_state=seed).fit(patients).predict(new.reshape(len(new), -1))


def clustpy_idec(x, y, new, k, seed):
    from clustpy.deep import IDEC

    patients = x[y == 1].reshape(-1, x[0].size)
    return IDEC(k, **epochs(patients), random_state=seed).fit(patients).predict(new.reshape(len(new), -1))


def epochs(patients):
    """The package's defaults (100 and 150) for few patients; of many, a fifth, so that a run takes minutes."""
    return {} if len(patients) < MANY else {"pretrain_epochs": 20, "clustering_epochs": 30}


def mlni_hydra(x, y, new, k, seed):
    import pandas as pd
    from mlni.hydra_clustering import clustering

    table = pd.DataFrame(x.reshape(len(x), -1)).add_prefix("f")
    table.insert(0, "diagnosis", np.where(y == 1, 1, -1))
    table.insert(0, "session_id", "one")
    table.insert(0, "participant_id", [f"p{row}" for row in range(len(x))])
    folder = Path(tempfile.mkdtemp())
    table.to_csv(folder / "features.tsv", sep="\t", index=False)
    clustering(str(folder / "features.tsv"), str(folder), k, k, cv_repetition=5, n_threads=1)
    found = pd.read_csv(folder / "clustering" / "clustering_assignment.tsv", sep="\t").set_index("participant_id")
    return found.loc[[f"p{row}" for row in new], f"assignment_{k}"].to_numpy()


def nidl_simclr(x, y, new, k, seed):
    import torch
    from nidl.estimators.ssl import SimCLR
    from sklearn.cluster import KMeans
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision.transforms import v2

    if x.ndim == 2:
        raise ValueError("nidl learns from two views of an image, and a table has none")
    views = v2.RandomAffine(25, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10)
    layers = [nn.Sequential(nn.Conv2d(*io, 3, 2, 1), nn.BatchNorm2d(io[1]), nn.ReLU()) for io in ((1, 32), (32, 64))]
    encoder = nn.Sequential(*layers, nn.Conv2d(64, 128, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def two_views(batch):
        return [torch.stack([views(one) for one in torch.as_tensor(np.stack(batch))]) for _ in range(2)]

    loader = DataLoader(x[y == 1], 256, shuffle=True, collate_fn=two_views)
    model = SimCLR(encoder, proj_input_dim=128, max_epochs=20, random_state=seed, accelerator="cpu").fit(loader)
    seen, others = (model.transform(DataLoader(some, 256)).numpy() for some in (x[y == 1], new))
    return KMeans(k, n_init=10, random_state=seed).fit(seen).predict(others)


def main() -> None:
    name, given, told, seed, limit = sys.argv[1:]
    # ends this process by SIGXCPU, whatever library it is in; other programs on the machine do not count
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), resource.RLIM_INFINITY))
    with np.load(given) as stored:
        x, y, new, place, k = (stored[key] for key in ("x", "y", "new", "place", "k"))
    if name in WITHOUT_PREDICTION:
        fresh = place < 0
        place[fresh] = len(x) + np.arange(fresh.sum())
        x, y, new = np.concatenate([x, new[fresh]]), np.concatenate([y, np.ones(fresh.sum(), y.dtype)]), place
    package = name.partition("_")[0]
    kept = define_vision_operators() if package in NEEDS_VISION else None  # as long as this is kept, they exist
    importlib.import_module(MODULES[package])
    began, computed = time.perf_counter(), time.process_time()
    labels = globals()[name](x, y, new, int(k), int(seed))
    about = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - computed}
    about["peak_memory_mb"] = peak_memory_mb()
    np.savez(told, labels=np.asarray(labels), about=json.dumps(about))
    del kept


def peak_memory_mb() -> float:
    """Of this process alone: on Linux, getrusage begins with the memory of the process that started it."""
    status = Path("/proc/self/status")
    if status.is_file():
        return next(int(line.split()[1]) for line in status.open() if line.startswith("VmHWM")) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)


def define_vision_operators():
    """Wheels of torchvision on the package index are built for CUDA; beside a CPU build of torch they are imported only
    if these two operators, which nobody here calls, exist."""
    from torch.library import Library

    library = Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


if __name__ == "__main__":
    main()
