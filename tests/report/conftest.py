"""Runs for the page: made up, so that every kind of data is at hand at once, and small."""

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.number import decide
from phenogroups.evaluation.scores import intervals, score
from phenogroups.methods import PlainKMeans, settings_of
from phenogroups.report.material import Evidence, gather
from phenogroups.report.page import write_page
from phenogroups.training.film import Film
from phenogroups.training.run import write_csv, write_model
from phenogroups.workflows.discover import report_none, subgroup_table

NASTY = "<script>alert(1)</script>"


def a_cohort(shape, *, count=80, truth=True, seed=0) -> Cohort:
    rng = np.random.default_rng(seed)
    ill, kind = np.arange(count) % 2, rng.integers(0, 2, count)
    inputs = rng.normal(size=(count, *shape)).astype(np.float32)
    flat = inputs.reshape(count, -1)
    flat[:, 0] += 3 * ill
    flat[:, 1] += ill * np.where(kind, 4, -4)
    covariates = pd.DataFrame(
        {"age": rng.uniform(20, 80, count), "sex": rng.choice(["F", "M", None], count), "<b>": 1.0}
    )
    subject = np.array([NASTY, *(f"sub-{i:03d}" for i in range(1, count))])
    names = ("a$b", f"</script>{NASTY}") if truth else ()
    return Cohort(inputs, ill, subject, covariates=covariates, truth=kind if truth else None, truth_names=names)


def a_run(folder, shape=(1, 8, 8), *, truth=True, evidence=None, film=True, count=80, n_subgroups=2, page=True):
    """A run folder as `discover` writes it, of a method that takes no time."""
    cohort = a_cohort(shape, truth=truth, count=count)
    test, train = cohort[: count // 2], cohort[count // 2 :]
    method = PlainKMeans(n_subgroups=n_subgroups).fit(train)
    if film:
        rng = np.random.default_rng(0)
        method.film_ = Film(np.arange(count // 4), np.arange(1, 6), rng.normal(size=(5, count // 4, 4)))
        method.trained_on = lambda seen: seen
    seen, new = method.predict_cohort(train), method.predict_cohort(test)
    new.__dict__["diagnosis"] = np.linspace(0, 1, len(test))
    recipe = {"method": "kmeans", "settings": settings_of(method), "input_shape": list(shape), "table": {"path": NASTY}}
    recipe |= {"date": "2026-11-17T20:15+00:00", "command": f"phenogroups discover '{NASTY}'"}
    features = [f"volume {j}" for j in range(shape[0])] if len(shape) == 1 else None
    said = {"asked": ["Asked & answered."], "sure": ["Sure."], "who": ["Who."], "apart": ["Apart."]}
    material = gather(
        method, train, test, seen, new, title=f"Subgroups {NASTY}", sentences=said, feature_names=features,
        evidence=evidence,
    )  # fmt: skip
    folder.mkdir(parents=True)
    write_model(folder, recipe, method.state())
    tables = [subgroup_table(train, seen, "train", method), subgroup_table(test, new, "held-out", method)]
    write_csv(folder / "subgroups.csv", pd.concat(tables))
    scores = asdict(score(test, new)) | {"intervals": intervals(test, new)}
    (folder / "scores.json").write_text(json.dumps({"kmeans": scores}))
    history = {"epoch": range(1, 6), "classification": 1.0, "bound": np.linspace(-1, 0, 5), "seconds": 1.0}
    write_csv(folder / "history.csv", pd.DataFrame(history))
    material.write(folder)
    if page:
        write_page(folder)
    return folder, material


EVIDENCE = Evidence(
    warnings=("Subgroup B may be a <b>scanner</b>.",),
    confounds=pd.DataFrame({"covariate": ["age"], "among": ["patients"], "p_corrected": [0.0123]}),
    profiles=pd.DataFrame({"feature": ["iq"], "A": [101.5], "B": [None]}),
    criteria=pd.DataFrame({"subgroups": [2, 3, 4], "silhouette": [0.5, 0.2, 0.1], "stability": [0.9, None, 0.3]}),
    choice="Two subgroups are the most stable.",
    verdict={
        "answer": "plausible",
        "headline": "They hold & follow the <b>pen</b>.",
        "why": ["Runs agree.", "The pen differs."],
        "next_step": "Adjust for the pen.",
    },
    stability=pd.DataFrame(
        {
            "what": ["other starts"],
            "agreement": [0.91],
            "by_chance": [0.02],
            "n": [40],
            "meaning": ["The same are found again."],
        }
    ),
)


@pytest.fixture(scope="session")
def make_run():
    return a_run


@pytest.fixture(scope="session")
def evidence():
    return EVIDENCE


@pytest.fixture(scope="session")
def none_run(tmp_path_factory):
    """Folders of cohorts without subgroups, of images and of features, with the page alone."""
    folder = tmp_path_factory.mktemp("none")
    criteria = pd.DataFrame(
        {
            "subgroups": [2, 3], "gap": [0.001, 0.05], "gap_of_smaller": [0.002, 0.2], "apart": [2.1, 5.0],
            "p_gap": [0.5, 0.5], "p_shuffled": [0.4, 0.3], "agreement": [0.7, 0.2], "smallest": [0.4, 0.2],
        }
    )  # fmt: skip
    choice = decide(criteria)
    with pytest.MonkeyPatch.context() as patch:  # encoders take their time, and are tested elsewhere
        vectors = np.random.default_rng(0).normal(size=(80, 5))
        patch.setattr("phenogroups.workflows.discover.sample_vectors", lambda *_: (np.arange(80), vectors))
        for kind, shape in (("images", (1, 20, 20)), ("table", (15,))):
            report_none(a_cohort(shape), PlainKMeans(), folder / kind, choice, command="phenogroups discover x")
    return folder


@pytest.fixture(scope="session")
def image_run(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("page") / "run", evidence=EVIDENCE)[0]


@pytest.fixture(scope="session")
def table_run(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("page") / "run", (15,), count=120)[0]
