"""How many subgroups there are, if any: every criterion of the paper, and one rule that decides.

All numbers of subgroups are judged in the same vectors, which none of them has shaped: what is found for K subgroups
was not put there by training for K, and nothing is trained for a single K. The rule asks for gaps between subgroups
among patients who were not used to find the direction of the gap, and that controls do not show.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from sklearn.preprocessing import SplineTransformer
from torch import Tensor

from phenogroups.clustering.first_split import FirstSplit, first_split, held_out_scores
from phenogroups.clustering.gap import deviations_apart
from phenogroups.clustering.held_out import judgement
from phenogroups.clustering.significance import p_gap, p_shuffled
from phenogroups.clustering.space import fit_space
from phenogroups.evaluation.criteria import bic, dec_ratio, experts_accuracy, principal, separation, x_means
from phenogroups.evaluation.variables import Variable, variable

COMPONENTS = 15  # of the patients, in which the paper's criteria are computed, at most
FEWEST_COMPONENTS = 5
PATIENTS_PER_COMPONENT = 20
SEEN_BY_EXPERTS = 30  # components of everybody, for the mixture of experts
PATIENT_WEIGHT = 0.1  # of a patient in the regression on covariates, where a control counts 1
TIMES_CHANCE = 2.0  # an effect on patients or controls alone is shrunk to nothing below so many times chance
WINSORISE = 2.5  # deviations beyond which a coordinate is pulled in
KNOWN = 0.5  # share of patients, and of controls, of whom a covariate must be known to be taken out
# the rule: a number of subgroups passes if
GAP = 0.03  # between any two subgroups this share of their patients is missing, beyond what is missing in controls,
# and this gap is as wide as between normal distributions so many deviations apart, of two subgroups or of more, where
# the narrowest of several gaps counts,
APART, APART_OF_MORE = 4.0, 3.5
# chance shows as much with at most this probability, where one number was asked for, or several, or where a smaller
# number passes as well,
SURE_OF_ONE, SURE_OF_SEVERAL, SURE_OF_MORE = 0.01, 0.005, 0.002
SURE_OF_PAIR = 0.001  # and random diagnoses with at most this one, times the number of pairs, whose largest p counts

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """The chosen number of subgroups and the evidence for it."""

    subgroups: int  # 1: there are none
    reason: str  # in a sentence
    p: float  # that patients without groups show such gaps, whatever the number of subgroups
    p_shuffled: float  # that patients named at random differ so much from the other subjects
    criteria: pd.DataFrame  # one row per number of subgroups


def choose(
    embeddings: list[np.ndarray],
    diagnosis: np.ndarray,
    covariates: pd.DataFrame,
    *,
    least: int = 2,
    most: int = 6,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> Choice:
    """How many subgroups the patients have in these embeddings (n, dims), one for each encoder that saw everybody.

    Side by side, what several encoders see stands out, and accidents of one do not.
    """
    is_patient = diagnosis == 1
    patients = disease_vectors(embeddings, is_patient, covariates)[torch.as_tensor(is_patient)].numpy()
    everybody = principal(np.hstack(embeddings), SEEN_BY_EXPERTS)
    x = torch.as_tensor(unexplained(side_by_side(embeddings, is_patient), is_patient, covariates))
    sides = x[is_patient], x[~is_patient]
    rows = []
    for k in range(2, most + 1):
        split = first_split(*sides, k, seed=seed)
        labels = split.labels.numpy()
        one_hot = torch.eye(k, dtype=torch.float64)[split.labels]
        rows.append({
            "subgroups": k,
            **evidence(split, *sides, seed),
            **separation(patients, labels, seed),
            "bic": bic(torch.as_tensor(patients), one_hot),
            "x_means": x_means(patients, k, seed),
            "dec_ratio": dec_ratio(patients, k, seed),
            "diagnosis_bacc": experts_accuracy(everybody, is_patient, one_hot.numpy(), seed),
        })  # fmt: skip
        progress(f"{k} subgroups")
    return decide(pd.DataFrame(rows), least)


def evidence(split: FirstSplit, patients: Tensor, controls: Tensor, seed: int) -> dict[str, float]:
    """What the rule is about, of one number of subgroups."""
    scores = held_out_scores(split, patients, controls, seed=seed)
    tested = judgement([scores], split.elected.labels, split.discriminants.weights.shape[1])
    return {
        "gap": tested.gap,
        "gap_of_smaller": tested.of_smaller,
        "apart": deviations_apart(tested.of_smaller, tested.pair_size),
        "p_gap": p_gap(scores, different=split.different, seed=seed),
        "p_shuffled": p_shuffled(scores, different=split.different, seed=seed),
        "agreement": split.agreement,
        "smallest": tested.smallest,
    }


@dataclass(frozen=True)
class Test:
    """What a number of subgroups has to pass; series have one value for each number."""

    asked: str
    failing: str  # the answer, if it fails
    values: pd.Series
    passes: pd.Series
    unit: str = "p {:.2g}"  # how a value is shown


def tests(criteria: pd.DataFrame) -> list[Test]:
    """The rule by which a number of subgroups is decided on.

    One of several numbers has to be surer than a single one, and a number beyond one that passes surer still: variants
    of one kind pass weaker tests.
    """
    gap, apart, k, p_gap = criteria["gap"], criteria["apart"], criteria["subgroups"], criteria["p_gap"]
    apart_enough = (gap >= GAP) & (apart >= np.where(k == 2, APART, APART_OF_MORE))
    of_the_disease = criteria["p_shuffled"] <= SURE_OF_PAIR * k * (k - 1) / 2
    one_of = SURE_OF_ONE if len(criteria) == 1 else SURE_OF_SEVERAL
    first = k[apart_enough & of_the_disease & (p_gap <= one_of)].min()
    sure = np.where(k > first, SURE_OF_MORE, one_of)
    words = f"{one_of}" + f", or {SURE_OF_MORE} where a smaller number passes" * (len(criteria) > 1)
    return [
        Test(
            f"Gaps that controls do not show (as of normal distributions at least {APART:g} deviations apart, "
            f"{APART_OF_MORE:g} with more than two subgroups)",
            "no gap lies between them, or only one that controls show as well", apart,
            apart_enough, "{:.1f} deviations",
        ),
        Test(
            f"Wider gaps than patients without groups show by chance (p at most {words})",
            "patients without groups show such gaps by chance", p_gap, p_gap <= sure,
        ),
        Test(
            f"Wider gaps than patients named at random show (p at most {SURE_OF_PAIR} for each pair of subgroups)",
            "patients named at random show such gaps as well", criteria["p_shuffled"], of_the_disease,
        ),
    ]  # fmt: skip


def decide(criteria: pd.DataFrame, least: int = 2) -> Choice:
    """The largest number of subgroups that passes all tests; none if no number does."""
    fails = pd.DataFrame({test.failing: ~test.passes for test in tests(criteria)})
    criteria = criteria.assign(passes=~fails.any(axis=1))
    p = float(min(1.0, len(criteria) * criteria["p_gap"].min()))  # so many numbers were tried (Bonferroni)

    def failing(row: int) -> str:
        """The first test that fails: where there is no gap, the others say no more."""
        return str(fails.columns[fails.loc[row].to_numpy().argmax()])

    allowed = criteria.index[criteria["subgroups"] >= least]
    passing = [row for row in allowed if criteria.loc[row, "passes"]]
    if not passing:
        tried = f"with {criteria.loc[allowed[0], 'subgroups']}, {failing(allowed[0])}" if len(allowed) else "none tried"
        more = "; no larger number passes either" if len(allowed) > 1 else ""
        shuffled = float(criteria.loc[allowed, "p_shuffled"].min()) if len(allowed) else np.nan
        return Choice(1, f"No subgroups: {tried}{more}.", p, shuffled, criteria)
    row = passing[-1]
    k = int(criteria.loc[row, "subgroups"])
    beyond = f"; with {k + 1}, {failing(row + 1)}" if row + 1 in fails.index else ""
    reason = f"{k} subgroups: a gap that controls do not show lies between any two of them{beyond}."
    return Choice(k, reason, p, float(criteria.loc[row, "p_shuffled"]), criteria)


def side_by_side(embeddings: list[np.ndarray], is_patient: np.ndarray) -> np.ndarray:
    """(n, dims of all): each encoder counts as much as any other."""
    return np.hstack([e / max(float(e[is_patient].std(axis=0).mean()), 1e-12) for e in embeddings])


def disease_vectors(embeddings: list[np.ndarray], is_patient: np.ndarray, covariates: pd.DataFrame) -> Tensor:
    """(n, components): encoders side by side, without what covariates explain and without severity."""
    rest = torch.as_tensor(unexplained(side_by_side(embeddings, is_patient), is_patient, covariates))
    components = max(FEWEST_COMPONENTS, min(COMPONENTS, int(is_patient.sum()) // PATIENTS_PER_COMPONENT))
    space = fit_space(
        rest, torch.as_tensor(is_patient), remove_severity=True, winsorise=WINSORISE,
        components=min(components, rest.shape[1] - 1),  # along severity nothing is left but what was pulled in
    )  # fmt: skip
    return space(rest)


def unexplained(x: np.ndarray, is_patient: np.ndarray, covariates: pd.DataFrame) -> np.ndarray:
    """What a smooth regression on the covariates leaves of each side, patients and controls, about its own mean.

    Only of covariates that are known and vary in both: a symptom that controls cannot have may be what subgroups are.
    Effects that both share are taken out first, and patients count less for them. Then those of one side alone, as far
    as chance does not explain them. For subgroups that lie far apart, a plain regression of the patients takes whatever
    differs between them by chance for an effect, and fills the gap between them.
    """
    x, sides = x.astype(np.float64), (is_patient, ~is_patient)
    known = [variable(str(name), covariates[name]) for name in covariates]
    columns = [_columns(v) for v in known if all(_varies(v[side]) for side in sides)]
    if not columns:
        return x
    basis, centred = np.hstack(columns), x.copy()
    for side in sides:
        basis[side] -= basis[side].mean(axis=0)
        centred[side] -= x[side].mean(axis=0)
    weight = np.sqrt(np.where(is_patient, PATIENT_WEIGHT, 1.0))[:, None]
    explained = basis @ np.linalg.lstsq(weight * basis, weight * centred, rcond=None)[0]
    for side in sides:
        explained[side] += _beyond_chance(basis[side], (centred - explained)[side])
    return x - explained


def _beyond_chance(basis: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Linear effects of the basis on each column of x, shrunk by what chance explains (James and Stein)."""
    coefficients, _, rank, _ = np.linalg.lstsq(basis, x, rcond=None)
    effect = basis @ coefficients
    by_chance = ((x - effect) ** 2).sum(axis=0) / max(len(x) - 1 - rank, 1) * rank
    return effect * np.clip(1 - TIMES_CHANCE * by_chance / np.maximum((effect**2).sum(axis=0), 1e-300), 0, 1)


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
