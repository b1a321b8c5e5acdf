"""What kinds of one handwritten digit there are, told apart by a network that knows only "this digit or not".

python examples/06_mnist.py --digit 1 --data DIR --picture ones.png; without --data the files are fetched.
"""

import argparse

import numpy as np

from phenogroups import DeepUCSL
from phenogroups.data.examples.mnist import mnist
from phenogroups.report.figures import exemplars_figure

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--digit", type=int, default=1)
parser.add_argument("--data", help="folder with the four MNIST files")
parser.add_argument("--epochs", type=int, default=DeepUCSL.epochs)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--picture", help="where to write the most typical digits of each subgroup as PNG")
arguments = parser.parse_args()

train, test = (mnist(arguments.digit, data=arguments.data, split=split) for split in ("train", "test"))
model = DeepUCSL(n_subgroups=2, epochs=arguments.epochs, seed=arguments.seed).fit(train)
for caveat in model.caveats():
    print(caveat)
found = model.predict_cohort(test)
subgroup = np.where(test.is_patient, found.subgroup.argmax(1), -1)
sizes = [int((subgroup == k).sum()) for k in range(2)]
print("test digits in each subgroup:", *sizes)
if arguments.picture:
    away = [np.linalg.norm(found.embedding - mean, axis=1) for mean in model.subgroup_means_]
    nearest = [np.flatnonzero(subgroup == k)[np.argsort(away[k][subgroup == k])][:8] for k in range(2)]
    rows = np.concatenate(nearest)
    pictures = (255 * np.asarray(test.inputs[rows])[:, 0]).astype(np.uint8)
    figure = exemplars_figure(pictures, subgroup[rows], found.subgroup[rows].max(1), sizes)
    figure.savefig(arguments.picture, dpi=300)
