"""Two clear subgroups that are two scanners: what a run says of them, and why no adjustment mends it.

python examples/05_is_it_real.py [--out is-it-real]. All patients have one illness, and no subgroups; half of them were
seen at site B, whose scanner differs, and all controls at site A.
"""

import argparse

from phenogroups import DeepUCSL, discover, drawn_table
from phenogroups.data.cohort import CohortError
from phenogroups.methods.ucsl import UCSL

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--subjects", type=int, default=600)
parser.add_argument("--site-effect", type=float, default=6.0, help="between the scanners, in deviations of the noise")
parser.add_argument("--epochs", type=int, default=DeepUCSL.epochs)
parser.add_argument("--out", default="is-it-real", help="run folder to write")
arguments = parser.parse_args()

cohort = drawn_table(arguments.subjects, subgroups=1, site_effect=arguments.site_effect)
found = discover(cohort, DeepUCSL(epochs=arguments.epochs), arguments.out)
for sentence in found.sentences:
    print(sentence)
print(found.confounds.drop(columns=["kind", "n", "missing"]).to_string(index=False, float_format="%.3f"))

try:
    UCSL(adjust=("site",)).fit(cohort)
except CohortError as error:
    print("Adjusting for site:", error)
