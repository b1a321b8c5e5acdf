"""Stability: each agreement by its definition, beside its null, and missing where it cannot be computed."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.evaluation.stability import NAMES, stability
from phenogroups.methods import Consensus, DeepUCSL, PlainKMeans, Prediction


def weighed(method, cohort):
    train, test = cohort.split(0.2, 0)
    seen, new = method.fit_predict_cohort(train), method.predict_cohort(test)
    return stability(method, train, seen, test, new).set_index("what"), test, new


@pytest.fixture(scope="module")
def clear():
    return drawn_table(200, 10, separation=8, shared=1, seed=0)


def test_subgroups_are_found_again_and_nobodys_are_less_so(clear):
    found, *_ = weighed(PlainKMeans(), clear)
    assert list(found.columns) == ["agreement", "by_chance", "n", "meaning"]
    assert list(found.index) == ["starts", "halves"]  # K-means has no gate
    assert (found["agreement"] > 0.95).all()
    nobody = drawn_table(200, 10, subgroups=1, shared=1, seed=0)
    assert weighed(PlainKMeans(), nobody)[0].loc["halves", "agreement"] < 0.6
    assert found.loc["halves", "by_chance"] < 0.9
    assert found["n"].tolist() == [80, 80]


def test_deep_ucsl_has_all_three(clear):
    found, test, new = weighed(DeepUCSL(epochs=2, steps=10), clear)
    assert list(found.index) == ["starts", "halves", "gate and centroids"]
    ill = test.is_patient
    by_hand = adjusted_rand_score(new.subgroup[ill].argmax(1), new.by_centroid[ill].argmax(1))
    assert found.loc["gate and centroids", "agreement"] == by_hand
    assert abs(found.loc["gate and centroids", "by_chance"]) < 0.3
    assert found.loc["halves", "agreement"] > 0.9
    assert (found["meaning"] == [NAMES[what] for what in found.index]).all()


def test_what_takes_a_training_is_not_computed():
    rng = np.random.default_rng(0)
    images = Cohort(rng.random((120, 1, 12, 12)).astype(np.float32), np.arange(120) % 2)
    found, *_ = weighed(DeepUCSL(epochs=2, steps=2, restarts=2), images)
    assert found.loc[["starts", "halves"], "agreement"].isna().all()
    assert found.loc["networks", "n"] == 48
    few = drawn_table(60, 6)
    assert weighed(PlainKMeans(), few)[0]["agreement"].isna().all()  # halves of a handful


def test_a_consensus_knows_its_starts(clear):
    method = Consensus(PlainKMeans(), runs=3)
    found, *_ = weighed(method, clear)
    assert found.loc["starts", "agreement"] == method.stability_
    assert found.loc["halves", "agreement"] > 0.9


def test_the_same_seed_gives_the_same_table(clear):
    first, second = (weighed(PlainKMeans(seed=3), clear)[0] for _ in range(2))
    assert first.equals(second)


def test_vectors_are_found_again_in_any_order_of_the_subgroups(clear):
    train, test = clear.split(0.2, 0)
    method = PlainKMeans()
    seen, new = method.fit_predict_cohort(train), method.predict_cohort(test)
    turned = Prediction(seen.subgroup[:, ::-1], None, seen.embedding)
    assert stability(method, train, turned, test, new).equals(stability(method, train, seen, test, new))
