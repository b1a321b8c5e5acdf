"""The subjects of a study: inputs, diagnosis and other variables of each, validated once."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.properties import pixel_properties
from phenogroups.data.stored import Inputs, StoredRows

CONTROL, PATIENT = 0, 1
BY_SUBJECT = ("inputs", "diagnosis", "subject", "group", "truth", "is_test")  # arrays with one row per subject
TABLES = ("covariates", "files")  # the same, as tables
UNKNOWN = -1  # truth of a control, or of a patient whose subgroup is unknown


def count_of(number: int, what: str) -> str:
    """`1 patient`, `2 patients`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def subgroup_letter(k: int) -> str:
    """Name of a subgroup in tables and on pages: A, B, ... Z, AA, AB, ..."""
    return (subgroup_letter(k // 26 - 1) if k >= 26 else "") + ascii_uppercase[k % 26]


class CohortError(ValueError):
    """The cohort cannot be used as it is; the message says what to change."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """Patients and controls: their inputs, diagnosis and other variables.

    A cohort is checked when it is made and never changed. Indexing (``cohort[rows]``) selects subjects.

    Parameters
    ----------
    inputs
        Array of shape (subjects, features), (subjects, channels, height, width) or (subjects, channels, depth, height,
        width).
    diagnosis
        0 for a control, 1 for a patient, of shape (subjects,).
    subject
        Unique names of the subjects; by default s0, s1, ...
    group
        Names of groups that a split keeps together, such as both eyes of a person; by default every subject is alone.
    covariates
        Table with one row per subject, such as age, sex and site. Methods do not learn from it unless asked to.
    truth
        Known subgroup of each patient, from 0 on; -1 for controls and where it is unknown. Read by evaluation only.
    truth_names
        Names of the known subgroups.
    is_test
        True for subjects whom the cohort itself holds out.
    name
        Name of the cohort in reports.
    files
        Properties of the image files, such as width and voxel size, as `from_table` reads them; by default none.

    Examples
    --------
    >>> import numpy as np
    >>> from phenogroups import Cohort
    >>> cohort = Cohort(np.zeros((6, 2)), [0, 1, 0, 1, 0, 1], group=["a", "b", "c", "d", "e", "f"])
    >>> len(cohort), len(cohort.patients), cohort.input_shape
    (6, 3, (2,))
    """

    inputs: Inputs
    diagnosis: np.ndarray
    subject: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=str))
    group: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=str))
    covariates: pd.DataFrame = field(default_factory=pd.DataFrame)
    truth: np.ndarray | None = None
    truth_names: tuple[str, ...] = ()
    is_test: np.ndarray | None = None
    name: str = "cohort"
    files: pd.DataFrame = field(default_factory=pd.DataFrame)

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, StoredRows):  # those stay on disk
            self._set(inputs=np.asanyarray(self.inputs))
        count = len(self.inputs)
        if len(self.subject) == 0:
            width = len(str(max(count - 1, 0)))
            self._set(subject=np.array([f"s{i:0{width}d}" for i in range(count)]))
        if len(self.group) == 0:
            self._set(group=self.subject)
        for what in TABLES:
            if getattr(self, what).empty:
                self._set(**{what: pd.DataFrame(index=range(count))})
        for what in (*BY_SUBJECT, *TABLES):
            values = getattr(self, what)
            if values is not None and len(values) != count:
                raise CohortError(f"Expected {count} values of {what}, one per input. Received: {len(values)}.")
        self._set(
            diagnosis=np.asarray(self.diagnosis),
            subject=np.asarray(self.subject).astype(str),
            group=np.asarray(self.group).astype(str),
            **{what: getattr(self, what).reset_index(drop=True) for what in TABLES},
        )
        self._validate()
        self._set(diagnosis=self.diagnosis.astype(np.int64))
        if self.truth is not None:
            truth = np.where(self.is_patient, self.truth, UNKNOWN).astype(np.int64)
            names = self.truth_names or tuple(str(k) for k in range(truth.max(initial=-1) + 1))
            self._set(truth=truth, truth_names=names)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():  # only while the frozen dataclass is created
            object.__setattr__(self, name, value)

    def _validate(self) -> None:
        if len(self.inputs) == 0:
            raise CohortError("Expected at least one subject. Received: none.")
        if self.inputs.ndim not in (2, 4, 5):
            raise CohortError(
                "Expected inputs as (subjects, features), (subjects, channels, height, width) or "
                f"(subjects, channels, depth, height, width). Received: shape {self.inputs.shape}."
            )
        unknown = ~np.isin(self.diagnosis, (CONTROL, PATIENT))
        if unknown.any():
            values = sorted({str(value) for value in self.diagnosis[unknown]})
            raise CohortError(
                f"Expected diagnosis 0 (control) or 1 (patient). Received: {', '.join(values)} "
                f"in {name_rows(self.subject[unknown])}. Drop or recode them."
            )
        refuse_repeated(self.subject)
        if self.inputs.dtype.kind not in "biuf":
            raise CohortError(f"Expected numbers as inputs. Received: values of type {self.inputs.dtype}.")
        # inputs on disk were checked when they were written
        if isinstance(self.inputs, np.memmap | StoredRows):
            return
        if np.issubdtype(self.inputs.dtype, np.floating):
            broken = ~np.isfinite(self.inputs.reshape(len(self.inputs), -1).sum(axis=1, dtype=np.float64))
            if broken.any():
                raise CohortError(
                    f"Expected finite numbers. Received NaN or infinite values in {name_rows(self.subject[broken])}. "
                    "Fill them in or drop these rows."
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Any) -> "Cohort":
        """The same cohort with only these rows (a mask, a slice or positions)."""
        rows = np.arange(len(self))[rows]
        some = replace(
            self,
            **{name: getattr(self, name).iloc[rows] for name in TABLES},
            **{name: getattr(self, name)[rows] for name in BY_SUBJECT if getattr(self, name) is not None},
        )
        if "input_digests" in vars(self):  # not computed again: inputs may be on disk
            vars(some)["input_digests"] = [self.input_digests[row] for row in rows]
        return some

    @property
    def is_patient(self) -> np.ndarray:
        """True for patients, of shape (subjects,)."""
        return self.diagnosis == PATIENT

    @property
    def _classes(self) -> tuple[tuple[str, np.ndarray], ...]:
        return ("patients", self.is_patient), ("controls", ~self.is_patient)

    @property
    def patients(self) -> "Cohort":
        """The cohort without its controls."""
        return self[self.is_patient]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one subject's input."""
        return tuple(self.inputs.shape[1:])

    @cached_property
    def input_digests(self) -> list[bytes]:
        """A checksum of the input of each subject."""
        return [hashlib.sha256(np.ascontiguousarray(row).data).digest() for row in self.inputs]

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the subjects' names, diagnoses and inputs."""
        digest = hashlib.sha256(b"".join(self.input_digests))
        digest.update(self.diagnosis.tobytes())
        digest.update("\x1f".join(map(str, self.subject)).encode())
        return digest.hexdigest()

    @cached_property
    def image_properties(self) -> pd.DataFrame:
        """Properties such as image_brightness and image_width, one row per subject; methods do not learn from them."""
        return pd.concat([pixel_properties(self.inputs), self.files], axis=1)

    def require(self, n_subgroups: int, *, controls: bool = True) -> None:
        """Raise unless there are both classes and enough patients for this number of subgroups."""
        patients = self.is_patient
        if (patients.all() and controls) or not patients.any():
            only, missing = ("patient", "control") if patients.all() else ("control", "patient")
            raise CohortError(
                f"Expected patients and controls (two classes). Received: one class, all {only}s, in "
                f"{name_rows(self.subject)}. Bring {missing}s, or say which words of the diagnosis mean {missing}."
            )
        if patients.sum() < n_subgroups:
            raise CohortError(
                f"Expected at least as many patients as subgroups. Received: {patients.sum()} patients for "
                f"{n_subgroups} subgroups, in {name_rows(self.subject[patients])}. Ask for fewer subgroups or bring "
                "more patients."
            )

    def split(self, held_out: float = 0.2, seed: int = 0) -> "tuple[Cohort, Cohort]":
        """Split into a training part and a held-out part.

        Subjects of one group stay together, and both parts have patients and controls.

        Parameters
        ----------
        held_out
            Share of the subjects to hold out, stratified by diagnosis; not used where `is_test` says who is held out.
        seed
            Seed of the random choice.

        Returns
        -------
        train, test : Cohort
            The two parts.

        Examples
        --------
        >>> from phenogroups import drawn_table
        >>> train, test = drawn_table(100).split(held_out=0.2)
        >>> len(train), len(test)
        (80, 20)
        """
        if self.is_test is not None and self.is_test.any() and not self.is_test.all():
            for name, kind in self._classes:
                sides = self.is_test[kind]
                if len(sides) and (sides.all() or not sides.any()):
                    raise CohortError(
                        f"Expected {name} on both sides of the split. Received: all {len(sides)} "
                        f"{'held out' if sides.all() else 'to train on'}. Move some, or leave the split column out."
                    )
            return self[~self.is_test], self[self.is_test]
        groups, member = np.unique(self.group.astype(str), return_inverse=True)
        ill = np.zeros(len(groups), dtype=bool)
        np.logical_or.at(ill, member, self.is_patient)
        size = np.bincount(member)
        rng = np.random.default_rng(seed)
        # repeated while one part lacks a class, which a large group can cause
        for _ in range(1000):
            out = np.zeros(len(groups), dtype=bool)
            for stratum in (ill, ~ill):
                order = rng.permutation(np.flatnonzero(stratum))
                reached = np.cumsum(size[order])
                # a group is held out if its middle lies within the share
                out[order[reached - size[order] / 2 < held_out * size[order].sum()]] = True
            rows = out[member]
            one_sided = [
                (name, kind)
                for name, kind in self._classes
                if kind.any() and (rows[kind].all() or not rows[kind].any())
            ]
            if not one_sided:
                return self[~rows], self[rows]
        name, kind = one_sided[0]
        raise CohortError(
            f"Expected enough {name} to train on and to hold out a share of {held_out}. Received: {kind.sum()} "
            f"{name} in {len(np.unique(member[kind]))} groups. Bring more, or hold out another share."
        )

    @classmethod
    def from_table(
        cls,
        table: str | Path | pd.DataFrame,
        *,
        folder: str | Path | None = None,
        cache: str | Path | None = None,
        **columns: Any,
    ) -> "Cohort":
        """Read a cohort from a table with one row per subject, or from a folder of a known layout.

        Parameters
        ----------
        table
            A CSV, TSV, Parquet or Excel (.xlsx) file, a DataFrame, or a folder.
        folder
            Where image paths begin; by default the folder of the table.
        cache
            Folder of a file into which images are decoded and from which they are then read; by default, only a large
            cohort is kept on disk.
        **columns
            Which column means what, as in `phenogroups.data.tables.TableSpec`: image, features, diagnosis, control,
            patient, subject, group, covariates, truth, split. Unless a `reading` is given, images of at least 64 pixels
            a side are resized to 224, the size at which the default encoder was trained.

        Returns
        -------
        Cohort
            The subjects of the table.

        Examples
        --------
        >>> import pandas as pd
        >>> from phenogroups import Cohort
        >>> rows = pd.DataFrame({"volume": [1.0, 2.0, 3.0], "dx": ["HC", "SZ", "SZ"]})
        >>> cohort = Cohort.from_table(rows, diagnosis="dx", control=("HC",), patient=("SZ",))
        >>> cohort.diagnosis.tolist()
        [0, 1, 1]
        """
        from phenogroups.data.opening import open_cohort

        reading = columns.pop("reading", None)
        given = None if reading is None else vars(reading)
        return open_cohort(table, columns, given, cache=cache, folder=folder, resized=reading is None)


def refuse_repeated(subject: np.ndarray) -> None:
    repeated = pd.Series(subject).duplicated(keep=False).to_numpy()
    if repeated.any():
        raise CohortError(
            f"Expected every subject id once. Received repeated ids in {name_rows(subject[repeated])}. "
            "Name rows apart, and name what belongs together (two eyes, two visits) in the group column."
        )


def name_rows(names: Sequence[str] | np.ndarray, most: int = 5) -> str:
    """Rows in a message: `3 rows (sub-01, sub-07, sub-09)`."""
    shown = ", ".join(str(name) for name in names[:most])
    more = ", ..." if len(names) > most else ""
    return f"{len(names)} row{'s' if len(names) != 1 else ''} ({shown}{more})"
