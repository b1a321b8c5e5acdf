"""From a fitted method to a verdict: all evidence for and against its subgroups."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from phenogroups.clustering.first_split import first_split
from phenogroups.data.cohort import Cohort, count_of, subgroup_letter
from phenogroups.evaluation.confounds import Followed, associations, followed
from phenogroups.evaluation.number import Choice, decide, evidence, unexplained
from phenogroups.evaluation.persons import Agreement, persons_agreement
from phenogroups.evaluation.profiles import profiles
from phenogroups.evaluation.stability import enough_for_halves, some_of_each, stability
from phenogroups.evaluation.verdict import Verdict, alarms, judge
from phenogroups.methods import Method, Prediction

TESTED = 750  # largest number of patients, and of controls, in the test of a given number of subgroups


@dataclass(frozen=True)
class Weighed:
    """The evidence, and the verdict."""

    verdict: Verdict
    followed: list[Followed]  # what the subgroups follow
    warnings: list[str]  # shown before any description
    tested: Choice | None  # test of the number of subgroups; None: not tested
    stability: pd.DataFrame
    persons: Agreement | None
    confounds: pd.DataFrame | None
    profiles: pd.DataFrame | None


def weigh(
    method: Method, trained: tuple[Cohort, Prediction], held_out: tuple[Cohort, Prediction],
    class_bacc: float | None, choice: Choice | None = None,
) -> Weighed:  # fmt: skip
    """Judge the subgroups of a fitted method; `choice` is the result of a search for their number."""
    (train, seen), (test, new) = trained, held_out
    confounds, profiled = compare_covariates((train, test), (seen, new), method.seed)
    follows = [] if confounds is None else followed(confounds)
    labels = np.concatenate([each.subgroup.argmax(axis=1) for each in (seen, new)])
    ill, person = (np.concatenate([getattr(c, what) for c in (train, test)]) for what in ("is_patient", "group"))
    persons = persons_agreement(labels[ill], person[ill], method.seed)
    doubts = [*method.caveats(), *alarms(test.diagnosis, new, class_bacc), *copies(train, test)]
    again = stability(method, train, seen, test, new)
    tested = choice or tested_number(method, train)
    held = np.bincount(new.subgroup[test.is_patient].argmax(axis=1), minlength=method.n_subgroups)
    verdict = judge(
        again, tested, searched=choice is not None, followed=follows, persons=persons, doubts=doubts,
        held=held.tolist(),
    )  # fmt: skip
    warned = [*(one.words for one in follows), *([] if persons is None else persons.warnings()), *doubts]
    return Weighed(verdict, follows, warned, tested, again, persons, confounds, profiled)


def copies(train: Cohort, test: Cohort) -> list[str]:
    """A warning where held-out images are copies of training images; features of few values may be equal by chance."""
    if len(train.input_shape) == 1:
        return []
    known = set(train.input_digests)
    count = sum(digest in known for digest in test.input_digests)
    if not count:
        return []
    return [
        f"{count_of(count, 'held-out image')} {'is a copy' if count == 1 else 'are copies'} of training images, which "
        "are recognised, not predicted. Drop copies, or give them one group; `phenogroups check` lists them."
    ]


def compare_covariates(
    cohorts: tuple[Cohort, ...], predictions: tuple[Prediction, ...], seed: int
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Confounds and profiles of all subjects; None where the cohort has no covariates, and no images.

    Training subjects are included, since the held-out ones are few and methods do not learn from covariates.
    """
    covariates, images = (
        pd.concat([getattr(cohort, what) for cohort in cohorts], ignore_index=True)
        for what in ("covariates", "image_properties")
    )
    if covariates.shape[1] + images.shape[1] == 0:
        return None, None
    diagnosis, group = (np.concatenate([getattr(c, what) for c in cohorts]) for what in ("diagnosis", "group"))
    subgroup = np.concatenate([prediction.subgroup for prediction in predictions])
    letters = np.array([subgroup_letter(k) for k in subgroup.argmax(axis=1)])
    found = associations(subgroup, diagnosis, covariates, group, seed, images)
    described = profiles(letters, diagnosis == 1, covariates, group, seed) if covariates.shape[1] else None
    return found, described


def tested_number(method: Method, train: Cohort) -> Choice | None:
    """Test of the given number of subgroups; None where it would need another training."""
    k, seed = method.n_subgroups, method.seed
    sample = train[some_of_each(train, TESTED, seed)]
    x = method.vectors(sample) if enough_for_halves(sample, k) else None
    if x is None:
        return None
    ill = sample.is_patient
    rest = torch.as_tensor(unexplained(x.astype(np.float64), ill, sample.covariates))
    sides = rest[ill], rest[~ill]
    split = first_split(*sides, k, seed=seed)
    return decide(pd.DataFrame([{"subgroups": k, **evidence(split, *sides, seed)}]), least=k)
