"""The subjects that methods are trained on and scored on, in each run of a comparison."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from phenogroups.data.cohort import UNKNOWN, Cohort, CohortError


@dataclass(frozen=True, eq=False)
class Study:
    """A cohort to train on and what to score on: a test cohort, or the share of the cohort that each run holds out."""

    cohort: Cohort
    test: Cohort | None = None  # scored in every run; None: the held-out share is
    diagnosis_test: Cohort | None = None  # where the diagnosis is scored, if not with the subgroups
    held_out: float | None = None  # share not trained on, drawn anew for each run; None: all are trained on

    def __post_init__(self) -> None:
        if self.test is None and self.held_out is None:
            raise CohortError("Expected a test cohort or a share to hold out. Received neither. Hold out 0.2.")
        for other in (self.test, self.diagnosis_test):
            if other is not None and other.input_shape != self.cohort.input_shape:
                raise CohortError(
                    f"Expected test inputs of shape {self.cohort.input_shape}, as trained on. Received: "
                    f"{other.input_shape} in {other.name}. Prepare both cohorts alike."
                )

    def parts(self, run: int) -> tuple[Cohort, Cohort, Cohort]:
        """Subjects to train on, to score subgroups on and to score the diagnosis on; the same for all methods."""
        train = left_out = self.cohort  # without a held-out share there is a test cohort
        if self.held_out is not None:
            train, left_out = self.cohort.split(self.held_out, run)
        scored = left_out if self.test is None else self.test
        return train, scored, scored if self.diagnosis_test is None else self.diagnosis_test

    def with_fixed_test(self) -> "Study":
        """The study whose test cohort is the part that the cohort itself holds out; `held_out` is of the rest."""
        held_out = self.cohort.is_test
        if held_out is None or held_out.all() or not held_out.any():
            return self
        train, test = self.cohort.split()
        return replace(self, cohort=train, test=test if self.test is None else self.test)

    @property
    def joined(self) -> Cohort:
        """Both cohorts as one, whose `is_test` marks the test cohort."""
        test = self.test
        if test is None or test is self.cohort:
            return self.cohort
        both = (self.cohort, test)
        names = max((cohort.truth_names for cohort in both), key=len)
        unknown = [np.full(len(cohort), UNKNOWN) if cohort.truth is None else cohort.truth for cohort in both]
        return Cohort(
            np.concatenate([np.asarray(cohort.inputs) for cohort in both]),
            **{name: np.concatenate([getattr(c, name) for c in both]) for name in ("diagnosis", "subject", "group")},
            covariates=pd.concat([cohort.covariates for cohort in both]),
            files=pd.concat([cohort.files for cohort in both]),
            truth=np.concatenate(unknown) if names else None,
            truth_names=names,
            is_test=np.repeat([False, True], [len(cohort) for cohort in both]),
            name=self.cohort.name,
        )

    @property
    def known_subgroups(self) -> int:
        """The number of known subgroups in the cohort that is scored."""
        scored = self.cohort if self.test is None else self.test
        return 0 if scored.truth is None else len(set(scored.truth[scored.truth >= 0].tolist()))

    @property
    def fingerprint(self) -> str:
        """A checksum of all that scores depend on beside the method: subjects, groups, truth, covariates and shares."""
        digest = hashlib.sha256(repr(self.held_out).encode())
        for cohort in (self.cohort, self.test, self.diagnosis_test):
            if cohort is not None:
                digest.update(cohort.fingerprint.encode())
                digest.update("\x1f".join(cohort.group).encode())
                digest.update(b"" if cohort.truth is None else cohort.truth.tobytes())
                digest.update(cohort.covariates.to_csv(index=False).encode())
                digest.update(b"" if cohort.files.empty else cohort.files.to_csv(index=False).encode())
                digest.update(b"" if cohort.is_test is None else cohort.is_test.tobytes())
            digest.update(b"\x1e")
        return digest.hexdigest()
