"""From a run folder and new subjects to their subgroups: read, predicted and written block by block."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from phenogroups.data.cache import Progress
from phenogroups.data.cohort import Cohort, CohortError, refuse_repeated, subgroup_letter
from phenogroups.data.columns import require_columns, subject_names, typed_covariates
from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings
from phenogroups.data.inputs import image_paths, name_broken, read_inputs
from phenogroups.data.opening import open_table
from phenogroups.data.properties import OF_FILES, file_properties
from phenogroups.data.reading import ImagePath
from phenogroups.data.streaming import Block, blocks_of, cached_rows, decoded_blocks
from phenogroups.data.tables import Table, spec_from_json
from phenogroups.data.untrusted import parse_json, read_limited
from phenogroups.data.writing import whole_file
from phenogroups.methods import Method, Prediction, load
from phenogroups.training.run import RunError, csv_text, member, read_recipe

PROBLEM = "problem"  # the last column: why a subject could not be assigned
REMARK = "remark"  # the column before it: why a subject has probabilities and no subgroup
STRANGENESS = "strangeness"  # distance to the training subjects; above 1, a subject is unlike all of them
PATIENT_FROM = 0.5  # probability of being a patient below which a subject has no subgroup
NO_PATIENT, STRANGER = "probably not a patient", "unlike all training subjects"
MOST_NAMED = 20  # subjects with a problem that messages name; the column has all


@dataclass
class Assigned:
    """What was written."""

    out: Path
    subjects: int = 0
    sizes: Counter[str] = field(default_factory=Counter)  # by letter
    undecided: int = 0
    no_patients: int = 0
    strangers: int = 0
    problems: dict[int, str] = field(default_factory=dict)  # of subjects who could not be assigned, by row

    def add(self, rows: pd.DataFrame) -> None:
        """Count the rows of one block."""
        self.sizes.update(rows["subgroup"].dropna())
        self.undecided += int((rows["undecided"] == True).sum())  # noqa: E712, it may be missing
        remarks = rows[REMARK].astype(str)
        self.no_patients += int(remarks.str.contains(NO_PATIENT).sum())
        self.strangers += int(remarks.str.contains(STRANGER).sum())
        self.problems |= rows.loc[rows[PROBLEM] != "", PROBLEM].to_dict()

    @property
    def broken(self) -> int:
        """Number of subjects who could not be assigned."""
        return len(self.problems)

    @property
    def warning(self) -> str | None:
        """The warning where most subjects are unlike the training subjects."""
        if 2 * self.strangers <= self.subjects - self.broken:
            return None
        return (
            f"{self.strangers} of {self.subjects - self.broken} subjects are unlike all that the model was trained on: "
            "other people, another machine, or another kind of picture. The model was not made for them."
        )

    def __str__(self) -> str:
        letters = sorted(self.sizes, key=lambda letter: (len(letter), letter))
        counts = {"undecided": self.undecided, NO_PATIENT: self.no_patients, STRANGER: self.strangers}
        parts = [", ".join(f"{letter} {self.sizes[letter]}" for letter in letters)]
        parts += [f"{count} {words}" for words, count in counts.items() if count]
        of_all = f" of {self.subjects}" if self.sizes.total() < self.subjects else ""
        return f"{self.sizes.total()}{of_all} subjects assigned ({'; '.join(filter(None, parts))}): {self.out}"


def predict_table(
    run: str | Path,
    table: str | Path,
    out: str | Path,
    progress: Progress | None = None,
    *,
    folder: str | Path | None = None,
    subject: str | None = None,
    features_file: str | Path | None = None,
    cache: str | Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Assigned:
    """Subgroups of new subjects, read as the table of the run was, and written atomically to `out`.

    `table` may be a folder of images; `folder` is where image paths begin, by default the table's own; `subject` is the
    column that names the rows, by default as in training; `features_file` has the features of the new subjects if those
    of the run came from a file; `cache` is a folder to decode images into. A file that cannot be read affects its row
    only: it has a `problem` instead of a subgroup, and `note` is called. A subject who is probably not a patient, or
    unlike all training subjects, has probabilities and a `remark`, but no subgroup.
    """
    if Path(out).resolve() == Path(table).resolve():
        raise RunError(f"Expected another file to write than the table itself. Received: {out}.")
    recipe = read_recipe(run)
    if not recipe.get("table"):
        raise RunError(
            f"Expected a run made from a table. Received: {run}, made from arrays. "
            f"In Python, phenogroups.load({str(run)!r}).predict_subgroup(X) assigns an array X."
        )
    method = load(run)
    _say_verdict(Path(run), note)
    spec = spec_from_json(recipe["table"])
    if (features_file is None) != (spec.features_file is None):
        source = "columns of the table" if spec.features_file is None else "a file of features (--features-file)"
        raise RunError(f"Expected inputs from {source}, as in training. Received: the other. Give what the run had.")
    spec = replace(
        spec, features_file=None if features_file is None else str(features_file), subject=subject or spec.subject
    )
    opened = open_table(table, spec, folder=folder)
    rows = opened.rows
    names = subject_names(rows, spec)
    refuse_repeated(names)
    of_files = [name for name in method.covariates if spec.reads_images and name in OF_FILES]
    of_table = [name for name in method.covariates if name not in of_files]
    paths = image_paths(opened) if spec.reads_images else [ImagePath("its row", None)] * len(rows)
    require_columns(rows, of_table)
    covariates = typed_covariates(rows[of_table], names)
    blank = np.zeros((len(rows), 1), np.float32)
    method.check_covariates(Cohort(blank, blank[:, 0], names, covariates=covariates))  # before anything is decoded
    columns = ["subject", *prediction_columns(Prediction.of_tensors(method.predict_blank()), method)]
    columns += [STRANGENESS, REMARK, PROBLEM]
    assigned = Assigned(Path(out), len(rows))
    embeddings = None if cache is None else embeddings_folder(Path(cache))  # new subjects are predicted once
    try:
        with whole_file(Path(out)) as file, keeping_embeddings(embeddings, note):
            for block in _blocks(opened, method.input_shape_, cache, progress):
                headers = _headers(paths, block, of_files)
                predicted = _predict(method, block, names, covariates, headers).reindex(columns=columns)
                assigned.add(predicted)
                file.write(csv_text(predicted, header=block.rows.start == 0).encode())
                if progress is not None:
                    progress(block.rows.stop, len(rows))
            problems = name_broken(assigned.problems, names, paths, MOST_NAMED)
            if assigned.broken == len(rows):
                listed = "\n".join(f"  {line}" for line in problems)
                raise CohortError(f"Expected subjects who can be assigned. Received: {len(rows)} who cannot:\n{listed}")
            for line in filter(None, [*problems, assigned.warning]):
                note(line)
    except OSError as error:
        raise RunError(f"Expected to read inputs and to write {out}. Received: {error}.") from error
    return assigned


def _say_verdict(run: Path, note: Callable[[str], None]) -> None:
    """Repeat the verdict on the model's subgroups where they should not be relied on."""
    try:
        verdict = parse_json(read_limited(member(run, "verdict.json")))
        answer, headline = verdict["answer"], verdict["headline"]
    except (OSError, ValueError, KeyError, TypeError):  # of an earlier version, or a model that was saved without a run
        return
    if answer != "convincing":
        note(f"The verdict on the subgroups of this model: {headline}")


def _blocks(
    table: Table, shape: tuple[int, ...], cache: str | Path | None, progress: Progress | None
) -> Iterator[Block]:
    if not table.spec.reads_images:
        inputs = read_inputs(table)
        if inputs.shape[1:] != shape:
            raise CohortError(f"Expected {shape[0]} features, as in training. Received: {inputs.shape[1]}.")
        return blocks_of(inputs)
    paths, reading = image_paths(table), table.spec.reading
    if cache is None:
        return decoded_blocks(paths, reading, shape)
    return blocks_of(*cached_rows(paths, reading, shape, Path(cache), progress))


def _headers(paths: list[ImagePath], block: Block, names: list[str]) -> pd.DataFrame:
    """These properties of the readable files of a block, one row each; NaN where a header does not say."""
    if not names:
        return pd.DataFrame(index=range(len(block.readable)))
    return file_properties([paths[row] for row in block.readable]).reindex(columns=names)


def _predict(
    method: Method, block: Block, subject: np.ndarray, covariates: pd.DataFrame, headers: pd.DataFrame
) -> pd.DataFrame:
    """One row per row of the block; subjects who cannot be assigned have empty cells and a problem."""
    rows = pd.DataFrame({"subject": subject[block.rows.start : block.rows.stop]}, index=block.rows)
    unknown = headers.isna().any(axis=1).to_numpy(bool)
    missing = f"has no {' or '.join(headers.columns)} in its header, which the model adjusts for"
    problems = dict(block.broken) | dict.fromkeys(block.readable[unknown].tolist(), missing)
    which, inputs = block.readable[~unknown], block.inputs[~unknown] if unknown.any() else block.inputs
    if len(which):
        known = {"covariates": covariates.iloc[which], "files": headers[~unknown]}
        cohort = Cohort(inputs, np.zeros(len(which)), subject[which], **known)
        prediction = method.predict_cohort(cohort)
        # the first subgroup would otherwise be the likeliest of a NaN
        lost = ~np.isfinite(prediction.subgroup).all(axis=1)
        problems |= dict.fromkeys(which[lost].tolist(), "is beyond what the model can compute")
        predicted = pd.DataFrame(prediction_columns(prediction, method), index=which)
        rows = rows.join(_withhold(predicted, method.strangeness(cohort))[~lost])
    return rows.assign(**{PROBLEM: [problems.get(row, "") for row in block.rows]})


def _withhold(predicted: pd.DataFrame, strangeness: np.ndarray) -> pd.DataFrame:
    """Remove the subgroups of probable controls and of subjects unlike all others; a remark says why."""
    healthy, strange = predicted.get("p_patient", pd.Series(1.0, predicted.index)) < PATIENT_FROM, strangeness > 1
    remarks = [" and ".join([NO_PATIENT] * a + [STRANGER] * b) for a, b in zip(healthy, strange.tolist(), strict=True)]
    letters = predicted["subgroup"].where(~(healthy | strange))
    return predicted.assign(**{"subgroup": letters, STRANGENESS: strangeness, REMARK: remarks})


def prediction_columns(prediction: Prediction, method: Method) -> dict[str, np.ndarray]:
    """The likeliest subgroup by its letter, all probabilities and the distance to each (docs/reference/files.md)."""
    letters = np.array([subgroup_letter(k) for k in range(prediction.subgroup.shape[1])])
    columns = {"subgroup": letters[prediction.subgroup.argmax(axis=1)]}
    columns |= {f"p_{letter}": p for letter, p in zip(letters, prediction.subgroup.T, strict=True)}
    columns |= {"confidence": prediction.confidence, "undecided": prediction.undecided}
    if prediction.diagnosis is not None:
        columns["p_patient"] = prediction.diagnosis
    if method.subgroup_means_ is not None:
        for letter, mean in zip(letters, method.subgroup_means_, strict=True):
            columns[f"distance_{letter}"] = np.linalg.norm(prediction.embedding - mean, axis=1)
    return columns
