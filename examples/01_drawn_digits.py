"""Sevens with and without crossbar, told apart by a network that knows only "seven or not".

python examples/01_drawn_digits.py [--subjects 6000] [--picture demo.png]
"""

import argparse

import numpy as np

from phenogroups import DeepUCSL, drawn_digits, score
from phenogroups.evaluation.projection import principal_axes
from phenogroups.report.figures import embedding_figure

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--subjects", type=int, default=6000)
parser.add_argument("--epochs", type=int, default=DeepUCSL.epochs)
parser.add_argument("--picture", help="where to write the embedding as PNG")
arguments = parser.parse_args()

train, test = drawn_digits(arguments.subjects, seed=0).split(held_out=0.2)
model = DeepUCSL(n_subgroups=2, epochs=arguments.epochs).fit(train)
found = model.predict_cohort(test)
print(score(test, found))
if arguments.picture:
    points, share = principal_axes(model.transform(train), found.embedding, 2)  # fitted on train, shown for held-out
    subgroup = np.where(test.is_patient, found.subgroup.argmax(1), -1)
    panels = [("Subgroups found", subgroup, "AB", [0, 1]), ("Truth", test.truth, test.truth_names, [0, 1])]
    embedding_figure(points, share, panels, test.is_patient).savefig(arguments.picture, dpi=300)
