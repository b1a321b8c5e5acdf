"""Why baselines miss the crossbar of MNIST sevens: it is not in their embedding, or K-means takes a louder split of it.

python benchmarks/embeddings.py --data DIR --labels FILE. For every method and seed, on the labelled training sevens:
Subgroup B-ACC as the method reads its embedding and by two mixtures; balanced accuracy of a logistic regression that
knows the crossbar of other sevens (what the embedding holds); and what the method's own split follows, by adjusted
mutual information with the crossbar and with quarters of slant and boldness (1 is the same, 0 is chance).
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import tyro
from common import ERR, Row, fit, machine, print_table, write_result
from follows import quarters
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_mutual_info_score, balanced_accuracy_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from phenogroups.cli import say
from phenogroups.data.examples.mnist import mnist
from phenogroups.evaluation.scores import score
from phenogroups.methods import build_method
from phenogroups.training.run import versions

METHODS = (
    "autoencoder",
    "scan",
    "swav",
    "simclr",
    "morpho_simclr",
    "morpho_pcl",
    "supcon",
    "morpho_supcon",
    "ws_deep_cluster",
    "deep_ucsl",
)
COLUMNS = {
    "own": "own\nreading",
    "mixture_10": "mixture,\n10 axes",
    "tied_30": "tied mixture,\n30 axes",
    "supervised": "supervised",
    "crossbar": "follows\ncrossbar",
    "slant": "slant",
    "boldness": "boldness",
}


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """What embeddings of MNIST sevens hold, and what the subgroups follow that methods read from them."""

    labels: Path
    """JSON file of known subgroups, read by evaluation only."""
    data: Path | None = None
    """Folder of the public files (default: PHENOGROUPS_DATA)."""
    methods: tuple[str, ...] = METHODS
    """Names in phenogroups.METHODS."""
    seeds: int = 3
    """How many: 0, 1, 2, ..."""

    def run(self) -> None:
        train = mnist(7, data=self.data, labels=self.labels)
        known = train.patients.truth >= 0
        crossbar, pixels = train.patients.truth[known], np.asarray(train.patients.inputs)[known, 0]
        everyone = np.full(len(pixels), True)
        quarter = {"slant": quarters(slant(pixels), everyone), "boldness": quarters(pixels.mean((1, 2)), everyone)}
        rows: list[Row] = []
        for name in self.methods:
            for seed in range(self.seeds):
                method = build_method(name, {"n_subgroups": 2, "seed": seed})
                seconds = fit(method, train)
                found = method.predict_cohort(train.patients)
                z = StandardScaler().fit_transform(found.embedding)
                split = found.subgroup[known].argmax(1)
                row = {"own": score(train.patients, found).subgroup_bacc}
                for axes, covariance in ((10, "full"), (30, "tied")):
                    key = "mixture_10" if covariance == "full" else "tied_30"
                    other = np.eye(2)[mixture(z, axes, covariance, seed)]
                    row[key] = score(train.patients, replace(found, subgroup=other)).subgroup_bacc
                row["supervised"] = supervised(z[known], crossbar)
                followed = {"crossbar": crossbar, **quarter}
                row |= {key: float(adjusted_mutual_info_score(v, split)) for key, v in followed.items()}
                rows.append({"method": name, "seed": seed, **row, "seconds": seconds})
                say(f"{name}, seed {seed}: " + ", ".join(f"{k} {v:.2f}" for k, v in row.items()), ERR)
        means = pd.DataFrame(rows).groupby("method", sort=False)[list(COLUMNS)].mean()
        lines = [[str(name), *(f"{line[key]:.2f}" for key in COLUMNS)] for name, line in means.iterrows()]
        print_table(["method", *COLUMNS.values()], lines)
        about = {"machine": machine(), "versions": versions()}
        say(f"Written: {write_result('embeddings-mnist7', {'cells': rows, **about})}", ERR)


def mixture(z: np.ndarray, axes: int, covariance: str, seed: int) -> np.ndarray:
    some = PCA(axes, random_state=seed).fit_transform(z)
    return GaussianMixture(2, covariance_type=covariance, n_init=5, random_state=seed).fit_predict(some)


def supervised(z: np.ndarray, crossbar: np.ndarray) -> float:
    """Balanced accuracy for sevens whose crossbar the regression does not know (five folds)."""
    by_others = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, class_weight="balanced", max_iter=1000))
    return float(balanced_accuracy_score(crossbar, cross_val_predict(by_others, z, crossbar, cv=5)))


def slant(pixels: np.ndarray) -> np.ndarray:
    """How far strokes lean to one side for each pixel of height, by second moments of the ink."""
    height, width = pixels.shape[1:]
    ink = pixels / pixels.sum((1, 2), keepdims=True)
    y, x = np.mgrid[:height, :width]
    dy, dx = (side[None] - (ink * side).sum((1, 2))[:, None, None] for side in (y, x))
    return (ink * dx * dy).sum((1, 2)) / (ink * dy**2).sum((1, 2))


if __name__ == "__main__":
    tyro.cli(Embeddings).run()
