"""Pictures in a folder and a table that says who is ill: looked over, divided into subgroups, and new ones assigned.

python examples/02_your_own_images.py [--out my-study] [--subjects 2000]. The pictures are drawn digits, written as PNG
as if they were yours: begin at "from here on" with your own.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from phenogroups import Cohort, DeepUCSL, discover, drawn_digits, load
from phenogroups.data.opening import open_table
from phenogroups.data.quality import check_table
from phenogroups.data.tables import TableSpec
from phenogroups.workflows.predict import predict_table

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("my-study"), help="folder of the pictures, the table and the run")
parser.add_argument("--subjects", type=int, default=2000)
parser.add_argument("--epochs", type=int, default=DeepUCSL.epochs)
arguments = parser.parse_args()

drawn, home = drawn_digits(arguments.subjects, seed=0), arguments.out
(home / "scans").mkdir(parents=True, exist_ok=True)
for name, image in zip(drawn.subject, drawn.inputs, strict=True):
    Image.fromarray((255 * image[0]).astype(np.uint8)).save(home / "scans" / f"{name}.png")
rows = pd.DataFrame({"id": drawn.subject, "scan": [f"scans/{name}.png" for name in drawn.subject]})
rows["dx"] = np.where(drawn.is_patient, "SZ", "HC")
rows["age"] = drawn.covariates["age"].round()
rows.to_csv(home / "subjects.csv", index=False)
rows[:5].drop(columns="dx").to_csv(home / "new.csv", index=False)  # people of whom no diagnosis is known

# from here on, it is your own folder
spec = TableSpec(image="scan", subject="id", diagnosis="dx", control=("HC",), patient=("SZ",), covariates=("age",))
print(check_table(open_table(home / "subjects.csv", spec)).verdict)

cohort = Cohort.from_table(home / "subjects.csv", **vars(spec))
run = home / "run"
found = discover(cohort, DeepUCSL(n_subgroups=2, epochs=arguments.epochs), run, table=asdict(spec), overwrite=True)
print(*found.sentences, sep="\n")

print(predict_table(run, home / "new.csv", home / "new.subgroups.csv"))
print(load(run).predict_subgroup(cohort.inputs[:5]))  # the same five, from arrays
