"""What nobody can miss, every method finds."""

import numpy as np
import pytest

from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.scores import score
from phenogroups.methods import build_method


@pytest.fixture(scope="module")
def marks() -> Cohort:
    """Patients carry a bar or a chequerboard, controls carry nothing."""
    rng = np.random.default_rng(0)
    ill, truth = np.arange(120) % 2, np.where(np.arange(120) % 2, rng.integers(0, 2, 120), -1)
    images = rng.normal(scale=0.3, size=(120, 1, 16, 16)).astype(np.float32)
    images[truth == 0, :, 6:10] += 1
    images[truth == 1] += 1.5 * (np.indices((16, 16)).sum(axis=0) % 2)
    return Cohort(images, ill, truth=truth, name="marks")


@pytest.mark.parametrize("name", ["byol", "swav", "deep_cluster", "pcl", "ws_deep_cluster"])
def test_two_kinds_of_marks_are_told_apart(name, marks):
    settings = {"epochs": 2, "steps": 15} | ({"warmup": 1} if name == "pcl" else {})
    method = build_method(name, settings).fit(marks)
    found = score(marks, method.predict_cohort(marks))
    assert found.subgroup_bacc > 0.9
    assert found.class_bacc is None or found.class_bacc > 0.9
