"""How many subgroups there are, if any: every criterion of the paper, stability, and one rule that decides.

All numbers of subgroups are judged in the same vectors, which none of them has shaped: what is found for K subgroups
was not put there by training for K, and nothing is trained for a single K.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from scipy.stats import t as student
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import SplineTransformer
from torch import Tensor

from phenogroups.clustering.contrast import specificity
from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.space import fit_space
from phenogroups.clustering.structure import path, steps, without_more_groups
from phenogroups.evaluation.criteria import bic, dec_ratio, experts_accuracy, principal, separation, x_means
from phenogroups.evaluation.variables import Variable, variable

COMPONENTS = 15  # of the patients, in which subgroups are looked for, at most
FEWEST_COMPONENTS = 5
PATIENTS_PER_COMPONENT = 20
SEEN_BY_EXPERTS = 30  # components of everybody, for the mixture of experts
WINSORISE = 2.5  # deviations beyond which a coordinate is pulled in
RUNS = 5  # that stability compares, each without another fifth of the patients
KNOWN = 0.5  # share of patients, and of controls, of whom a covariate must be known to be taken out
# the rule: a number of subgroups passes if
SURE = 0.01  # p of its gain is at most this, and later p_shuffled of the number chosen,
GAP = 0.03  # between any two subgroups at least this share is missing,
GAP_SHARE = 1 / 3  # and at least this much of the widest such gap of a smaller number: styles of one kind gape less,
SHARE_OF_BEST = 0.5  # it gains at least this much of what the best smaller number gained,
STABLE = 0.6  # and runs agree at least so much about patients that they have not seen

Told = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """The chosen number of subgroups and the evidence for it."""

    subgroups: int  # 1: there are none
    reason: str  # in a sentence
    p: float  # that a cohort without groups shows as much: gain and gap of any number of subgroups
    p_shuffled: float  # that patients named at random are parted so much more than the controls; decides too
    criteria: pd.DataFrame  # one row per number of subgroups


def choose(
    embeddings: list[np.ndarray],
    diagnosis: np.ndarray,
    covariates: pd.DataFrame,
    *,
    least: int = 2,
    most: int = 6,
    surrogates: int = 19,
    seed: int = 0,
    told: Told = lambda _: None,
) -> Choice:
    """How many subgroups the patients have in these embeddings (n, dims), one for each encoder that saw everybody.

    Side by side, what several encoders see stands out, and accidents of one do not.
    """
    is_patient = diagnosis == 1
    patients = disease_vectors(embeddings, is_patient, covariates)[torch.as_tensor(is_patient)]
    found = steps(patients, most, surrogates=surrogates, seed=seed, told=lambda k: told(f"{k} subgroups"))
    told("stability")
    labels = [step.q.argmax(1).numpy() for step in found]
    again = stability(runs_of(embeddings, is_patient, covariates), labels, seed=seed)
    alike, _ = without_more_groups(patients.float(), torch.ones(len(patients), 1), 1, np.random.default_rng(seed))
    of_nobody = [q.argmax(1).numpy() for q in path(alike[0], found[-1].subgroups, seed=seed)]
    by_chance = stability(lambda _: alike[0], of_nobody, seed=seed)
    told("criteria")
    everybody = principal(np.hstack(embeddings), SEEN_BY_EXPERTS)
    rows = [
        {
            "subgroups": step.subgroups,
            "gain": step.gain,
            "gain_by_chance": step.expected_gain,
            "p_gain": step.p,
            "gap": step.gap,
            "p_gap": step.p_gap,
            "stability": again[i],
            "stability_by_chance": by_chance[i],
            **separation(patients.numpy(), step.q.argmax(1).numpy(), seed),
            "bic": bic(patients, step.q),
            "x_means": x_means(patients.numpy(), step.subgroups, seed),
            "dec_ratio": dec_ratio(patients.numpy(), step.subgroups, seed),
            "diagnosis_bacc": experts_accuracy(everybody, is_patient, step.q.numpy(), seed),
        }
        for i, step in enumerate(found)
    ]
    choice = decide(pd.DataFrame(rows), least)
    told("shuffled diagnoses")
    k = max(choice.subgroups, least)
    return of_the_disease(choice, shuffled(embeddings, is_patient, covariates, k, surrogates, seed))


@dataclass(frozen=True)
class Test:
    """What a number of subgroups has to pass; series have one value for each number."""

    asked: str
    failing: str  # the answer, if it fails
    values: pd.Series
    passes: pd.Series


def tests(criteria: pd.DataFrame) -> list[Test]:
    """The rule by which a number of subgroups is decided on."""
    gain, gap = criteria["gain"], criteria["gap"]
    share, of_widest = gain / gain.cummax(), gap / gap.cummax()
    return [
        Test(
            f"More structure than in patients without groups (p at most {SURE})", "chance alone gains as much",
            criteria["p_gain"], criteria["p_gain"] <= SURE,
        ),
        Test(f"A gap between any two (at least {GAP})", "no gap lies between some of them", gap, gap >= GAP),
        Test(
            f"Gaps about as wide as with fewer subgroups (at least {GAP_SHARE:.2g} of the widest)",
            "the gaps are far narrower than with fewer", of_widest,
            (gap < GAP) | (gap >= GAP_SHARE * gap.cummax()),  # where there is no gap, that has been said
        ),
        Test(
            f"Adds to what fewer subgroups tell (at least {SHARE_OF_BEST} of the best)",
            "they add little to what fewer tell", share, gain >= SHARE_OF_BEST * gain.cummax(),
        ),
        Test(
            f"Runs agree on patients they have not seen (at least {STABLE})",
            "runs without some patients put them elsewhere", criteria["stability"], criteria["stability"] >= STABLE,
        ),
    ]  # fmt: skip


def decide(criteria: pd.DataFrame, least: int = 2) -> Choice:
    """The largest number of subgroups that passes all tests; none if no number does."""
    fails = pd.DataFrame({test.failing: ~test.passes for test in tests(criteria)})
    criteria = criteria.assign(passes=~fails.any(axis=1))
    # a number of subgroups needs both, and so many numbers were tried (Bonferroni)
    p = float(min(1.0, len(criteria) * criteria[["p_gain", "p_gap"]].max(axis=1).min()))

    def failing(row: int) -> str:
        return " and ".join(str(why) for why, failed in fails.loc[row].items() if failed)

    allowed = criteria.index[criteria["subgroups"] >= least]
    passing = [row for row in allowed if criteria.loc[row, "passes"]]
    if not passing:
        tried = f"with {criteria.loc[allowed[0], 'subgroups']}, {failing(allowed[0])}" if len(allowed) else "none tried"
        more = "; no larger number passes either" if len(allowed) > 1 else ""
        return Choice(1, f"No subgroups: {tried}{more}.", p, np.nan, criteria)
    row = passing[-1]
    k = int(criteria.loc[row, "subgroups"])
    beyond = f"; with {k + 1}, {failing(row + 1)}" if row + 1 in fails.index else ""
    reason = (
        f"{k} subgroups: a gap lies between any two of them, and runs that have not seen a patient put him into the "
        f"same one (agreement {criteria.loc[row, 'stability']:.2f}, where 1 is the same and 0 is chance){beyond}."
    )
    return Choice(k, reason, p, np.nan, criteria)


def of_the_disease(choice: Choice, p_shuffled: float) -> Choice:
    """The choice, or none where patients named at random are parted as much: then controls have the subgroups too."""
    if choice.subgroups == 1 or p_shuffled <= SURE:
        return replace(choice, p_shuffled=p_shuffled)
    reason = (
        f"No subgroups of the disease: the patients fall into {choice.subgroups} groups, but controls do so about as "
        "much, and so do patients named at random."
    )
    return replace(choice, subgroups=1, reason=reason, p_shuffled=p_shuffled)


def shuffled(
    embeddings: list[np.ndarray],
    is_patient: np.ndarray,
    covariates: pd.DataFrame,
    k: int,
    times: int = 19,
    seed: int = 0,
) -> float:
    """The chance that `k` subgroups of a shuffled diagnosis are as specific to the patients as those of the true one.

    By Student's law, as ranks of nineteen shuffles could not say less than 0.05; not trusted below 0.001.
    The encoders are not trained anew: they know the true diagnoses, which makes the shuffled cohorts more structured
    and the test more cautious.
    """
    rng = np.random.default_rng(seed)

    def specific(ill: np.ndarray) -> float:
        z = disease_vectors(embeddings, ill, covariates)
        patients, controls = z[torch.as_tensor(ill)], z[torch.as_tensor(~ill)]
        q = path(patients, k, seed=seed)[-1]
        return specificity([tied_mixture(patients, k, start=q, max_iterations=0)], patients, controls)[0]

    truly = specific(is_patient)
    by_chance = np.array([specific(rng.permutation(is_patient)) for _ in range(times)])
    spread = max(by_chance.std(ddof=1) * np.sqrt(1 + 1 / times), 1e-12)
    return float(max(student.sf((truly - by_chance.mean()) / spread, times - 1), 0.001))


def disease_vectors(embeddings: list[np.ndarray], is_patient: np.ndarray, covariates: pd.DataFrame) -> Tensor:
    """(n, components): encoders side by side, without what covariates explain and without severity."""
    side_by_side = np.hstack([e / np.maximum(e[is_patient].std(axis=0), 1e-6) for e in embeddings])
    rest = torch.as_tensor(unexplained(side_by_side, is_patient, covariates))
    components = max(FEWEST_COMPONENTS, min(COMPONENTS, int(is_patient.sum()) // PATIENTS_PER_COMPONENT))
    space = fit_space(
        rest, torch.as_tensor(is_patient), remove_severity=True, winsorise=WINSORISE,
        components=min(components, rest.shape[1] - 1),  # along severity nothing is left but what was pulled in
    )  # fmt: skip
    return space(rest)


def unexplained(x: np.ndarray, is_patient: np.ndarray, covariates: pd.DataFrame) -> np.ndarray:
    """Residuals of a smooth regression on the covariates, within patients and within controls.

    Only of covariates that are known and vary in both: a symptom that controls cannot have may be what subgroups are.
    """
    x = x.astype(np.float64)
    known = [variable(str(name), covariates[name]) for name in covariates]
    shared = [v for v in known if all(_varies(v[side]) for side in (is_patient, ~is_patient))]
    for side in (is_patient, ~is_patient):
        columns = [_columns(v[side]) for v in shared]
        if columns:
            basis = np.hstack(columns)
            basis = basis - basis.mean(axis=0)
            x[side] -= basis @ np.linalg.lstsq(basis, x[side] - x[side].mean(axis=0), rcond=None)[0]
    return x


def _varies(v: Variable) -> bool:
    """Whether a covariate is known for most subjects, has several values, and is no name."""
    values = v.values[v.known]
    different = len(np.unique(values))
    return (
        len(values) >= KNOWN * len(v.values) and different > 1 and (v.kind == "amount" or different < len(values) / 5)
    )


def _columns(v: Variable) -> np.ndarray:
    """(n, columns): a smooth curve of an amount, one column per code but the first; whose is unknown is average."""
    if v.kind == "codes":
        return np.stack([v.values == code for code in np.unique(v.values[v.known])[1:]], axis=1).astype(np.float64)
    values = np.where(v.known, v.values, np.nanmean(v.values))[:, None]
    return SplineTransformer(n_knots=4, knots="quantile", include_bias=False).fit_transform(values)


def runs_of(embeddings: list[np.ndarray], is_patient: np.ndarray, covariates: pd.DataFrame) -> Callable[[int], Tensor]:
    """The patients' vectors as a run sees them: without one of the encoders, if there are several."""

    def vectors(run: int) -> Tensor:
        some = [e for i, e in enumerate(embeddings) if len(embeddings) == 1 or i != run % len(embeddings)]
        return disease_vectors(some, is_patient, covariates)[torch.as_tensor(is_patient)]

    return vectors


def stability(vectors: Callable[[int], Tensor], reference: list[np.ndarray], *, seed: int = 0) -> list[float]:
    """Adjusted Rand index of the reference labels (one array for each K from 2 on) with those of runs, on the patients
    that a run has not seen: each of the runs leaves out another part, so that everybody is left out once.
    """
    n, most = len(reference[0]), len(reference) + 1
    part = np.random.default_rng(seed).permutation(n) % RUNS
    agree = np.zeros((RUNS, most - 1))
    for run in range(RUNS):
        z, unseen = vectors(run), part == run
        seen = z[torch.as_tensor(~unseen)]
        for i, q in enumerate(path(seen, most, seed=seed + run)):
            fit = tied_mixture(seen, q.shape[1], start=q, max_iterations=0)
            labels = fit.log_posterior(z[torch.as_tensor(unseen)].double()).argmax(1).numpy()
            agree[run, i] = adjusted_rand_score(reference[i][unseen], labels)
    return agree.mean(axis=0).tolist()
