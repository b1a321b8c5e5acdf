"""Brain volumes in a BIDS folder: which patients have their lesions around the ventricles, and which in the cortex.

python examples/04_brain_volumes.py [--out brains] [--subjects 600] [--size 32]; takes minutes. The brains
are drawn and written as NIfTI with participants.tsv, as if they were yours: begin at "from here on" with your own.
"""

import argparse
from pathlib import Path

import nibabel
import numpy as np

from phenogroups import Cohort, DeepUCSL, discover, drawn_brains
from phenogroups.data.reading import Reading

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("brains"), help="folder of the study and of the run")
parser.add_argument("--subjects", type=int, default=600)
parser.add_argument("--size", type=int, default=32, help="voxels a side")
parser.add_argument("--epochs", type=int, default=DeepUCSL.epochs)
arguments = parser.parse_args()

drawn, study = drawn_brains(arguments.subjects, size=arguments.size, seed=0), arguments.out / "study"
for name, volume in zip(drawn.subject, drawn.inputs, strict=True):
    (study / f"sub-{name}" / "anat").mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(volume[0], np.diag([5, 5, 5, 1]))  # millimetres
    nibabel.save(image, study / f"sub-{name}" / "anat" / f"sub-{name}_T1w.nii.gz")
people = drawn.covariates.assign(participant_id=[f"sub-{name}" for name in drawn.subject])
people["group"] = np.where(drawn.is_patient, "patient", "HC")
people["lesions"] = [drawn.truth_names[k] if k >= 0 else "" for k in drawn.truth]
people.to_csv(study / "participants.tsv", sep="\t", index=False)

# from here on, it is your own folder
cohort = Cohort.from_table(
    study,
    diagnosis="group",
    control=("HC",),
    patient=("patient",),
    covariates=("age", "sex", "site"),
    truth="lesions",  # leave it out if nobody knows: only the scores need it
    reading=Reading(frame=(arguments.size,) * 3),  # what is larger is cropped, what is smaller padded
)
found = discover(cohort, DeepUCSL(n_subgroups=2, epochs=arguments.epochs), arguments.out / "run", overwrite=True)
print(*found.sentences, sep="\n")
