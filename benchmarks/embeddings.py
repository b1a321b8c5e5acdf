"""What an embedding holds, whatever K-means makes of it: several clusterings of the same MNIST sevens.

python benchmarks/embeddings.py --data DIR --labels FILE --method simclr --set epochs=30. A method that clusters its
embedding afterwards can fail in two ways: the subgroups are not there, or K-means takes a louder split.
"""

from dataclasses import dataclass, replace

import numpy as np
from common import TITLES, PublicData, Row, about_cohort, finish, fit, main, over_seeds
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from phenogroups.data.examples.mnist import mnist
from phenogroups.evaluation.scores import score

TITLES |= {
    "own": "as the\nmethod reads",
    "standardised": "K-means,\nstandardised",
    "mixture_10": "mixture,\n10 axes",
    "tied_30": "tied mixture,\n30 axes",
}


@dataclass(frozen=True, kw_only=True)
class Embeddings(PublicData):
    """Subgroup B-ACC of clusterings of one embedding, on the labelled training sevens."""

    seeds: int = 1
    method: str = "simclr"

    def run(self) -> None:
        train = self.some(mnist(7, data=self.data, labels=self.labels))

        def one_seed(seed: int) -> Row:
            method = self.build(seed)
            seconds = fit(method, train)
            found = method.predict_cohort(train.patients)
            z = StandardScaler().fit_transform(found.embedding)
            clusterings = {
                "standardised": KMeans(2, n_init=10, random_state=seed).fit_predict(z),
                "mixture_10": mixture(z, 10, "full", seed),
                "tied_30": mixture(z, 30, "tied", seed),
            }
            row = {"own": score(train.patients, found).subgroup_bacc}
            for name, labels in clusterings.items():
                row[name] = score(train.patients, replace(found, subgroup=np.eye(2)[labels])).subgroup_bacc
            return {**row, "seconds": seconds}

        rows = over_seeds(self, one_seed)
        finish("embeddings", self, rows, smoke=self.subjects is not None, trained_on=about_cohort(train))


def mixture(z: np.ndarray, axes: int, covariance: str, seed: int) -> np.ndarray:
    some = PCA(axes, random_state=seed).fit_transform(z)
    return GaussianMixture(2, covariance_type=covariance, n_init=5, random_state=seed).fit_predict(some)


if __name__ == "__main__":
    main(Embeddings)
