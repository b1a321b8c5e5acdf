"""Several methods beside each other on one cohort: the paper's table, with what is more than luck marked.

python examples/03_compare_methods.py [--methods all] [--seeds 5] [--out comparison]; started again, it goes on.
"""

import argparse

from phenogroups import compare, drawn_digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--methods", nargs="+", default=["deep_ucsl", "classifier", "simclr", "kmeans"])
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--subjects", type=int, default=2000)
parser.add_argument("--epochs", type=int, help="of every method that has epochs (default: its own)")
parser.add_argument("--out", default="phenogroups-compare", help="folder of finished cells, tables and picture")
arguments = parser.parse_args()

settings = {} if arguments.epochs is None else {"epochs": arguments.epochs}
cohort = drawn_digits(arguments.subjects, seed=0)
print(compare(cohort, arguments.methods, arguments.out, seeds=arguments.seeds, settings=settings, note=print))
