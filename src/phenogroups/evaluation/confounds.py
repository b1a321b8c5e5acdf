"""Whether subgroups are only age, sex or scanner: their association with every covariate, in patients and in controls.

A patient counts for the subgroup to which it was assigned. A control has no subgroup and counts for each with its
probability by the gate: a gate that is undecided about controls is associated with nothing.

One statistic is used for patients and controls, amounts and codes. Let a_k be the columns of subgroup probabilities,
each divided by the square root of its sum, and b_j those of the codes, or the centred ranks of an amount divided by
their norm. Then T = sum_kj (a_k . b_j)^2, minus 1 for codes, is chi-square / n of the table of subgroups and codes, or
eta squared of the ranks (Kruskal-Wallis H / (n - 1)). With T0 its mean over permutations and m its maximum, the effect
is sqrt((T - T0) / (m - T0)): Cramer's V, or the correlation ratio eta, corrected for chance (0: chance, 1: identical).
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from math import lgamma, log

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from phenogroups.data.cohort import subgroup_letter
from phenogroups.data.properties import WORDS, plain_name
from phenogroups.evaluation import variables
from phenogroups.evaluation.variables import Variable, holm, variable

ALARM = 0.01  # greatest corrected p of a warning: at 0.05, one sound cohort in twenty would be warned of
NEGLIGIBLE = 0.1  # smallest effect of a warning, however small its p; 0.1 is "small" by Cohen's convention
# Smallest probability of superiority for a warning about a property of images: of all pairs of a patient of a subgroup
# and a patient of another, the share in which the first has more of it. Illness changes most properties a little.
PAIRS = 0.85
REACHED = 0.7  # ratio of controls to patients at both ends of a property, from which controls vary as patients do
LARGE = 0.5  # effect from which a nuisance likely explains the subgroups; 0.5 is "large" by Cohen's convention
PERMUTATIONS = 4999  # at least
RESAMPLES = 1000
ROUNDING = 1e-12  # share of the squares of ranks below which a variance is rounding error
LEAST_KNOWN = 20  # smallest number of known values for a test
LEAST_SHARED = 5  # smallest number of subjects with a code; rarer codes are joined into one
LEAST_ARRANGEMENTS = 1000  # smallest number of permutations of groups for a test
OTHER = "other"
EFFECTS = {"codes": "Cramer's V", "amount": "eta of ranks"}
TESTS = {"codes": "chi-square, permuted", "amount": "Kruskal-Wallis, permuted"}
# covariates that are not illness; others may be part of it
NUISANCE = re.compile(
    r"(?i)(^|[^a-z])(age|sex|gender|site|cent(er|re)|hospital|scanner|machine|device|batch|vendor)s?($|[^a-z])"
)


def associations(
    subgroup: np.ndarray,  # (n, subgroups): probabilities
    diagnosis: np.ndarray,  # (n,): 0 control, 1 patient
    covariates: pd.DataFrame,  # one row per subject
    group: np.ndarray | None = None,  # (n,): rows of one group, such as two eyes, are shuffled and drawn together
    seed: int = 0,
    images: pd.DataFrame | None = None,  # the same of how pictures were taken: Cohort.image_properties
) -> pd.DataFrame:
    """One row per covariate among patients and among controls: effect with 95 % interval, p, and p corrected (Holm).

    p is by permutation of whole groups among groups of equal size, the interval by bootstrap of groups. Covariates and
    properties of images are corrected separately, so that a dozen properties do not cost the covariates power.
    """
    subgroup, diagnosis = np.asarray(subgroup, np.float64), np.asarray(diagnosis)
    how_taken = pd.DataFrame(index=covariates.index) if images is None else images
    if not len(subgroup) == len(diagnosis) == len(covariates) == len(how_taken):
        raise ValueError(
            f"Expected subgroups, diagnosis and covariates of the same subjects. Received: {len(subgroup)}, "
            f"{len(diagnosis)} and {len(covariates)} rows."
        )
    member = np.unique(np.arange(len(diagnosis)) if group is None else np.asarray(group), return_inverse=True)[1]
    columns = [variable(str(name), column) for name, column in covariates.items()]
    others = how_taken.drop(columns=[name for name in covariates if name in how_taken])  # tested as covariates
    shown = [Variable(str(name), "amount", column.to_numpy(np.float64)) for name, column in others.items()]
    shown = [one for one in shown if len(np.unique(one.values[one.known])) > 1]  # a constant cannot be followed
    source = {one.name: "image" for one in shown} | {one.name: "covariate" for one in columns}
    columns += shown
    permutations = max(PERMUTATIONS, round(4 * len(columns) / ALARM))  # the smallest corrected p is then below ALARM
    rng = np.random.default_rng(seed)
    rows = []
    hard = np.eye(subgroup.shape[1])[subgroup.argmax(axis=1)]
    of_controls = {column.name: column[diagnosis == 0] for column in columns}
    kinds = (("patients", diagnosis == 1, hard), ("controls", diagnosis == 0, subgroup))
    for among, who, membership in kinds:
        together: dict[bytes, list[Variable]] = defaultdict(list)  # columns known of the same subjects
        for column in columns:
            together[column[who].known.tobytes()].append(column[who])
        for alike in together.values():
            known = alike[0].known
            columns_known = [one[known] for one in alike]
            found = _tested(columns_known, membership[who][known], member[who][known], permutations, rng)
            for one, numbers in zip(alike, found, strict=True):
                row = {"covariate": one.name, "source": source[one.name], "among": among, "kind": one.kind}
                row |= {"n": int(known.sum()), "missing": int((~known).sum()), **numbers}
                if among == "patients" and one.kind == "amount":  # controls have no subgroup
                    healthy = of_controls[one.name].values
                    row |= _pairs(one.values[known], hard[who][known], healthy[~np.isnan(healthy)])
                rows.append(row)
    names = ["covariate", "source", "among", "kind", "n", "missing", "effect", "value", "low", "high", "subgroup"]
    table = pd.DataFrame(rows, columns=[*names, "pairs", "in_controls", "p", "p_corrected", "test"])
    for family in ("covariate", "image"):
        of_family = table["source"] == family
        table.loc[of_family, "p_corrected"] = holm(table.loc[of_family, "p"].to_numpy(np.float64))
    order = {column.name: i for i, column in enumerate(columns)}
    return table.sort_values("covariate", key=lambda named: named.map(order), kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Followed:
    """Something that the subgroups follow."""

    name: str  # in a sentence: site, or the brightness of the images
    source: str  # covariate or image
    artefact: bool  # likely; else it may as well be part of the illness
    words: str  # the warning
    properties: tuple[str, ...] = ()  # of images, those that the warning names, the clearest first


def warnings(table: pd.DataFrame) -> list[str]:
    """Sentences about what subgroups follow."""
    return [one.words for one in followed(table)]


def followed(table: pd.DataFrame) -> list[Followed]:
    """Covariates with a corrected p <= ALARM and an effect of at least NEGLIGIBLE; properties of images with PAIRS."""
    found = []
    for name, rows in table[table["source"] == "covariate"].groupby("covariate", sort=False):
        of = rows.set_index("among")
        patients, controls = of.loc["patients"], of.loc["controls"]
        nuisance = NUISANCE.search(str(name)) is not None
        if _alarming(patients):
            end = (
                f"They may be {name} and not disease."
                if nuisance
                else f"That is a finding if {name} is part of the illness, and an artefact if it is not."
            )
            artefact = nuisance and patients["value"] >= LARGE
            if _alarming(controls):
                end += f" Controls, who have no subgroups, are divided by it too ({_figures(controls)})."
                artefact = nuisance
            elif controls["test"].startswith("not tested") and nuisance:
                reason = controls["test"].removeprefix("not tested: ")
                end += f" Controls cannot tell the two apart ({reason})."
            found.append(
                Followed(str(name), "covariate", artefact, f"Subgroups follow {name} ({_figures(patients)}). {end}")
            )
        elif _alarming(controls):
            said = (
                f"Among controls, who have no subgroups, the gate follows {name} ({_figures(controls)}), though not "
                "noticeably among patients: part of what assigns patients to subgroups is not disease."
            )
            found.append(Followed(str(name), "covariate", False, said))
    return [*found, *_followed_in_images(table)]


def _followed_in_images(table: pd.DataFrame) -> list[Followed]:
    """One sentence about the clearest property that is likely an artefact, and one about what may be the disease."""
    rows = table[(table["source"] == "image") & (table["among"] == "patients")]
    rows = rows[(rows["p_corrected"] <= ALARM) & ((rows["pairs"] - 0.5).abs() >= PAIRS - 0.5)]
    rows = rows.sort_values("pairs", key=lambda pairs: -(pairs - 0.5).abs(), kind="stable")
    controls = table[table["among"] == "controls"].set_index("covariate")
    by_end: dict[tuple[str, bool], list[pd.Series]] = defaultdict(list)
    for _, row in rows.iterrows():
        by_end[_where_from(row, controls.loc[row["covariate"]])].append(row)
    found = []
    for (end, artefact), alike in by_end.items():
        first, letter = alike[0], alike[0]["subgroup"]
        words = WORDS[first["covariate"]][first["pairs"] < 0.5]
        also = "; ".join(
            f"the images of {row['subgroup']} are {WORDS[row['covariate']][row['pairs'] < 0.5]} ({_share(row):.0%})"
            for row in alike[1:]
        )
        said = (
            f"The images of subgroup {letter} are {words}: this is true in {_share(first):.0%} of all pairs of a "
            f"patient of {letter} and a patient of another subgroup, where chance gives 50% (corrected p "
            f"{first['p_corrected']:.2g}). {end}{f' The same holds for these properties: {also}.' if also else ''}"
        )
        name, properties = plain_name(first["covariate"]), tuple(row["covariate"] for row in alike)
        found.append(Followed(f"the {name} of the images", "image", artefact, said, properties))
    return found


def _where_from(patients: pd.Series, controls: pd.Series) -> tuple[str, bool]:
    """What a property of images that subgroups follow may be, in a sentence, and whether an artefact is likely."""
    likely = "it is likely how the picture was taken and not the disease."
    if _alarming(controls):
        return f"Controls, who have no subgroups, are divided by it too: {likely}", True
    if np.isnan(patients["in_controls"]):
        return "It may be how the picture was taken; there are too few controls to compare with.", False
    if patients["in_controls"] >= REACHED:
        return f"The images of controls vary in it as those of patients do: {likely}", True
    return (
        "The images of controls do not vary in it as those of patients do: it may be the disease itself, or how the "
        "pictures of some patients were taken. Look at the images to tell."
    ), False


def _share(row: pd.Series) -> float:
    return max(row["pairs"], 1 - row["pairs"])


def _pairs(values: np.ndarray, membership: np.ndarray, controls: np.ndarray) -> dict[str, object]:
    """How clearly a subgroup differs from the others in an amount, and whether controls vary in it as patients do.

    subgroup     the one that differs most
    pairs        the share of all pairs of a member and another patient in which the member has more
    in_controls  share of controls beyond the median of the subgroup, divided by that of patients; or the same of the
                 other patients' median if it is smaller. 1: controls vary as patients do; 0: they do not reach an end
    """
    ranks, size = rankdata(values), membership.sum(axis=0)
    others = len(values) - size
    there = np.flatnonzero((size > 0) & (others > 0))
    if not len(there):
        return {}
    larger = (membership.T @ ranks - size * (size + 1) / 2)[there] / (size * others)[there]
    most = int(np.abs(larger - 0.5).argmax())
    found: dict[str, object] = {"subgroup": subgroup_letter(int(there[most])), "pairs": float(larger[most])}
    if len(controls) >= LEAST_KNOWN:
        inside, sign = membership[:, there[most]] == 1, 1 if larger[most] > 0.5 else -1
        ends = [(side, np.median(side * some)) for side, some in ((sign, values[inside]), (-sign, values[~inside]))]
        ratios = [np.mean(side * controls >= end) / np.mean(side * values >= end) for side, end in ends]
        found["in_controls"] = float(min(ratios))
    return found


def untested(table: pd.DataFrame) -> list[str]:
    """One sentence about the covariates that could not be tested among patients, if there are any."""
    rows = table[(table["among"] == "patients") & (table["source"] == "covariate")]
    rows = rows[rows["test"].str.startswith("not tested")]
    reasons = [f"{row['covariate']} ({row['test'].removeprefix('not tested: ')})" for _, row in rows.iterrows()]
    return [f"Whether subgroups follow these covariates was not tested: {'; '.join(reasons)}."] if reasons else []


def _alarming(row: pd.Series) -> bool:
    return bool(row["p_corrected"] <= ALARM and row["value"] >= NEGLIGIBLE)


def _figures(row: pd.Series) -> str:
    known = f", known of {row['n']} of {row['n'] + row['missing']}" if row["missing"] else ""
    return (
        f"{row['effect']} {row['value']:.2f}, 95 % interval {row['low']:.2f} to {row['high']:.2f}, "
        f"corrected p {row['p_corrected']:.2g}{known}"
    )


def _tested(
    columns: list[Variable], membership: np.ndarray, member: np.ndarray, permutations: int, rng: np.random.Generator
) -> list[dict[str, object]]:
    """Effect, interval, p and test of each column, all known for the same subjects."""
    membership = membership[:, membership.sum(axis=0) > 0]
    columns = [_with_rare_codes_joined(column) for column in columns]
    reasons = [_not_testable(column, membership, member) for column in columns]
    tested = [column for column, reason in zip(columns, reasons, strict=True) if reason is None]
    found: list[dict[str, object]] = []
    if tested:
        a, sides = variables.unit_columns(membership), [variables.scores_of(column) for column in tested]
        ends = np.cumsum([b.shape[1] for b in sides])[:-1]
        squares = variables.permuted_squares(a, np.concatenate(sides, axis=1), member, permutations, rng)
        for column, b, by_chance in zip(tested, sides, np.split(squares, ends, axis=1), strict=True):
            less = float(column.kind == "codes")
            t, chance = np.square(a.T @ b).sum() - less, by_chance.sum(axis=1) - less
            most = min(membership.shape[1] - 1, b.shape[1] - 1) if column.kind == "codes" else 1
            drawn = _resampled(column, membership, member, rng)
            drawn -= drawn.mean() - t  # T of a bootstrap sample is biased upwards
            value, low, high = (
                float(np.sqrt(max(each - chance.mean(), 0) / (most - chance.mean())))
                for each in (t, *np.quantile(drawn, [0.025, 0.975]))
            )
            interval = {"low": low, "high": min(high, 1.0)}
            found.append(
                {"value": value, **interval, "p": variables.permutation_p(chance, t), "test": TESTS[column.kind]}
            )
    numbers = iter(found)
    return [
        {"effect": EFFECTS[column.kind], **(next(numbers) if reason is None else {"test": f"not tested: {reason}"})}
        for column, reason in zip(columns, reasons, strict=True)
    ]


def _with_rare_codes_joined(column: Variable) -> Variable:
    """With rare codes joined into one; otherwise names would be tested as codes."""
    if column.kind == "amount" or not len(column.values):
        return column
    position = column.values.astype(int)
    rare = np.bincount(position) < LEAST_SHARED
    kept, renamed = np.unique(np.where(rare, len(rare), np.arange(len(rare)))[position], return_inverse=True)
    levels = [OTHER if i == len(rare) else column.levels[i] for i in kept]
    return Variable(column.name, "codes", renamed.astype(np.float64), tuple(levels))


def _not_testable(column: Variable, membership: np.ndarray, member: np.ndarray) -> str | None:
    """Why the column cannot be tested, or None."""
    if len(column.values) < LEAST_KNOWN:
        return f"known of {len(column.values)} subjects, fewer than {LEAST_KNOWN}"
    if np.ptp(column.values) == 0:
        if column.levels == (OTHER,):
            return f"they are names, of which none is shared by {LEAST_SHARED} subjects"
        return f"all have the value {column.levels[0] if column.levels else f'{column.values[0]:g}'}"
    if membership.shape[1] < 2:
        return "all are in one subgroup"
    if sum(lgamma(len(of_size) + 1) for of_size in variables.blocks(member)) < log(LEAST_ARRANGEMENTS):
        return "there are too few groups of equal size to shuffle"
    return None


def _resampled(column: Variable, membership: np.ndarray, member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(RESAMPLES,): T of bootstrap samples of groups."""
    member = np.unique(member, return_inverse=True)[1]
    n_groups, k = int(member.max()) + 1, membership.shape[1]
    if column.kind == "codes":
        x = variables.one_hot(column.values)
    else:
        ranks = rankdata(column.values) / len(member)
        x = np.stack([np.ones_like(ranks), ranks, np.square(ranks)], axis=1)
    products = (membership[:, :, None] * x[:, None, :]).reshape(len(member), -1)
    found = np.empty(RESAMPLES)
    for some in variables.chunks(RESAMPLES, len(member)):
        draws = some.stop - some.start
        taken = rng.integers(n_groups, size=(draws, n_groups)) + n_groups * np.arange(draws)[:, None]
        weights = np.bincount(taken.ravel(), minlength=draws * n_groups).reshape(draws, n_groups)[:, member]
        found[some] = _of_tables((weights.astype(np.float64) @ products).reshape(draws, k, -1), column.kind)
    return found


def _of_tables(tables: np.ndarray, kind: str) -> np.ndarray:
    """T of weighted counts (draws, subgroups, codes), or of sums (draws, subgroups, [1, rank, squared rank])."""
    tiny = np.finfo(np.float64).tiny
    if kind == "codes":
        expected = tables.sum(axis=2, keepdims=True) * tables.sum(axis=1, keepdims=True)
        return (np.square(tables) / np.maximum(expected, tiny)).sum(axis=(1, 2)) - 1
    count, ranks, squares = np.moveaxis(tables, 2, 0)
    middle = np.square(ranks.sum(axis=1)) / count.sum(axis=1)
    between = (np.square(ranks) / np.maximum(count, tiny)).sum(axis=1) - middle
    spread = squares.sum(axis=1) - middle
    # in a sample in which all have the same amount, only rounding errors are left
    varies = spread > ROUNDING * squares.sum(axis=1)
    return np.where(varies, between / np.where(varies, spread, 1), 0.0)
