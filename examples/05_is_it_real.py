"""Two findings that look alike, one real and one made by a scanner: what a run says of each.

python examples/05_is_it_real.py [--out is-it-real]. In the first cohort patients have two kinds of an illness. In the
second they have one, and no subgroups; half of them were seen at site B, whose scanner differs, and all controls at
site A. Neither cohort's truth is used.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from phenogroups import DeepUCSL, discover, drawn_table, number_of_subgroups
from phenogroups.data.cohort import CohortError
from phenogroups.methods.ucsl import UCSL

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--subjects", type=int, default=600)
parser.add_argument("--apart", type=float, default=6.0, help="kinds, and scanners, in deviations of the noise")
parser.add_argument("--epochs", type=int, default=DeepUCSL.epochs)
parser.add_argument("--out", default="is-it-real", type=Path, help="folder of both run folders")
arguments = parser.parse_args()

cohorts = {
    "finding": drawn_table(arguments.subjects, separation=arguments.apart),
    "artefact": drawn_table(arguments.subjects, subgroups=1, site_effect=arguments.apart),
}
for name, cohort in cohorts.items():
    print(f"\n# {name}")
    method = DeepUCSL(epochs=arguments.epochs)
    choice = number_of_subgroups(cohort, method)
    method = replace(method, n_subgroups=max(choice.subgroups, 2))  # of the null too, to see what a run would say
    found = discover(cohort, method, arguments.out / name, choice=choice, overwrite=True)
    for sentence in found.sentences:
        print(sentence)
    print(found.confounds.drop(columns=["kind", "n", "missing"]).to_string(index=False, float_format="%.3f"))

try:
    UCSL(adjust=("site",)).fit(cohorts["artefact"])
except CohortError as error:
    print("Adjusting for site:", error)
