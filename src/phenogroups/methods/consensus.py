"""Consensus: the subgroups on which several runs of one method agree (co-assignment, Strehl & Ghosh 2002).

Every run has a seed and an order of subgroups of its own. The runs are aligned by their assignments of the training
patients; a new subject is then assigned by the mean of all runs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from phenogroups.clustering.consensus import consensus_labels
from phenogroups.clustering.matching import match_labels
from phenogroups.data.cohort import Cohort
from phenogroups.data.stored import Inputs
from phenogroups.methods.base import Assign, Method
from phenogroups.methods.deep_ucsl import DeepUCSL
from phenogroups.methods.prediction import Prediction
from phenogroups.methods.registry import build_method, class_of, name_of
from phenogroups.methods.settings import AtLeast
from phenogroups.networks.encoder import Encoder
from phenogroups.training.checkpoint import Checkpoint, without_prefix
from phenogroups.training.em import Progress

LARGEST = 2**32  # scikit-learn takes seeds below this
SEEDS = 2**20  # the first seeds of runs are below this, as methods multiply theirs
OWN = ("n_subgroups", "seed")  # settings that the consensus gives to its runs
FINISHED = "finished"  # name of the checkpoint of a run without epochs
AGREEING = 0.5  # adjusted Rand index from which runs agree: with two subgroups of equal size, they differ on 1 in 7


@dataclass(eq=False, repr=False)
class Consensus(Method, name="consensus"):
    """
    Parameters
    ----------
    estimator
        The method that is run several times; None: `DeepUCSL()`. Its n_subgroups and seed are replaced.
    runs
        Number of runs, each with a seed of its own.
    subsample
        Share of the subjects that each run is trained on, drawn anew for each; groups stay together.

    Attributes
    ----------
    runs_ : list of Method
        The fitted runs.
    stability_ : float
        Mean adjusted Rand index between the subgroups of two runs; 1: all runs agree, 0: as by chance.
    agreement_ : ndarray of shape (runs,)
        Adjusted Rand index of each run with the consensus.
    best_run_ : Method
        The run that agrees best with the consensus; the embedding is its own.

    Examples
    --------
    >>> from phenogroups import DeepUCSL, drawn_table
    >>> from phenogroups.methods import Consensus
    >>> cohort = drawn_table(80)
    >>> method = Consensus(DeepUCSL(epochs=2, steps=2), runs=2).fit(cohort)
    >>> method.predict_cohort(cohort).undecided.shape
    (80,)
    """

    estimator: Method | None = None
    runs: Annotated[int, AtLeast(2)] = 5
    subsample: float = 1.0
    # after the estimator, as in meta-estimators of scikit-learn
    n_subgroups: int = field(default=2, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    @property
    def needs_controls(self) -> bool:  # pyright: ignore
        return self.run(0).needs_controls

    @property
    def supports_distributed(self) -> bool:  # pyright: ignore
        return self.run(0).supports_distributed

    @property
    def by_lite0(self) -> bool:
        return self.run(0).by_lite0

    @property
    def frozen_encoder_(self) -> Encoder | None:  # pyright: ignore
        return self.runs_[0].frozen_encoder_

    @property
    def covariates(self) -> tuple[str, ...]:
        return (self.runs_[0] if hasattr(self, "runs_") else self.run(0)).covariates

    def check_covariates(self, who: Cohort) -> None:
        self.runs_[0].check_covariates(who)

    @property
    def passes(self) -> int:
        """Number of epochs of all runs, for progress bars; a run without epochs counts as one epoch."""
        return self.runs * self._passes_of_a_run

    def epoch_in_words(self, done: float, last: float | None = None) -> str:
        """Which run, and which epoch of it, is meant by a number of passes; `last` as in a single run."""
        run = min(max(math.ceil(done / self._passes_of_a_run), 1), self.runs)
        words, first = f"run {run} of {self.runs}", self.run(0)
        if not hasattr(first, "passes"):
            return words
        within = done - (run - 1) * self._passes_of_a_run
        return f"{words}, {first.epoch_in_words(within, last)}"  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def _passes_of_a_run(self) -> int:
        return getattr(self.run(0), "passes", 1)

    @property
    def best_run_(self) -> Method:
        """The run that agrees best with the consensus; the embedding is its own."""
        return self.runs_[self.best_]

    def run(self, i: int) -> Method:
        """The method of run i, not yet fitted; its seed does not depend on the number of runs."""
        first = np.random.SeedSequence(self.seed % LARGEST).generate_state(1)[0] % SEEDS
        estimator = DeepUCSL() if self.estimator is None else clone(self.estimator)
        return estimator.set_params(n_subgroups=self.n_subgroups, seed=int(first) + i)

    @classmethod
    def setting_names(cls) -> list[str]:
        return ["n_subgroups", "seed", "method", "runs", "settings", "subsample"]

    @classmethod
    def parse_settings(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """In JSON the estimator is two settings: the name of its `method`, and its `settings`."""
        name, of_runs = settings.get("method", "deep_ucsl"), settings.get("settings") or {}
        if not isinstance(of_runs, Mapping):
            raise ValueError(f"Expected settings as a table of names and values. Received: {of_runs!r}.")
        own = [each for each in OWN if each in of_runs]
        if own:
            raise ValueError(
                f"Expected {' and '.join(OWN)} of the consensus, which gives them to its runs. "
                f"Received: {', '.join(own)} in settings. Leave them out there."
            )
        if issubclass(class_of(name), cls):
            raise ValueError(_one_run_expected(name, "is made of several runs already"))
        given = {key: value for key, value in settings.items() if key not in ("method", "settings")}
        return {**super().parse_settings(given), "estimator": build_method(name, of_runs)}

    def settings_for_json(self) -> dict[str, Any]:
        run, given = self.run(0), super().settings_for_json()
        del given["estimator"]
        settings = {key: value for key, value in run.settings_for_json().items() if key not in OWN}
        return {**given, "method": name_of(run), "settings": settings}

    def check_settings(self) -> None:
        super().check_settings()
        if not 0 < self.subsample <= 1:
            raise ValueError(f"Expected subsample above 0 and at most 1. Received: {self.subsample!r}.")
        if self.estimator is None:
            return
        for name in OWN:  # a value of the estimator that would be replaced silently is an error
            given, plain = getattr(self.estimator, name), getattr(type(self.estimator), name)
            if given not in (plain, getattr(self, name)):
                raise ValueError(
                    f"Expected {name} of the consensus, which gives it to its runs. Received: {name}={given} of the "
                    f"estimator. Write Consensus({type(self.estimator).__name__}(...), {name}={given})."
                )
        if self.estimator.reads_truth or isinstance(self.estimator, Consensus):
            why = "learns from the truth" if self.estimator.reads_truth else "is made of several runs already"
            raise ValueError(_one_run_expected(type(self.estimator).__name__, why))
        self.run(0).check_settings()

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        self.runs_ = [self._fit_run(i, cohort, progress, checkpoint or Checkpoint()) for i in range(self.runs)]
        patients = cohort.patients
        probability = np.stack(
            [run.predict_subgroup_proba(patients) for run in self.runs_]
        )  # (runs, patients, subgroups)
        labels = probability.argmax(axis=2)
        together = consensus_labels(labels.T, self.n_subgroups, seed=self.seed % LARGEST)
        self.order_ = np.stack([align(of_run, together, self.n_subgroups) for of_run in labels])
        agreed = np.take_along_axis(probability, self.order_[:, None], axis=2).mean(axis=0).argmax(axis=1)
        self.agreement_ = np.array([adjusted_rand_score(agreed, of_run) for of_run in labels])
        self.best_ = int(self.agreement_.argmax())
        self.stability_ = float(np.mean([adjusted_rand_score(a, b) for a, b in combinations(labels, 2)]))

    def _fit_run(self, i: int, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint) -> Method:
        run, before, checkpoint = self.run(i), i * self._passes_of_a_run, checkpoint.of_part(f"run {i + 1}")
        if self.subsample < 1:  # subjects left out of a run are still assigned by it
            cohort, _ = replace(cohort, is_test=None).split(1 - self.subsample, run.seed)
        report = progress or (lambda _: None)
        kept = checkpoint.load(FINISHED)
        if kept is not None:
            run.restore(cohort.input_shape, kept[0])
        else:

            def of_run(row: dict[str, float]) -> None:
                report({**row, "epoch": before + row["epoch"], "run": i + 1})

            run.fit(cohort, progress=of_run if progress else None, checkpoint=checkpoint)
        if not hasattr(run, "passes"):
            checkpoint.save(FINISHED, run.state(), {})  # a run with epochs saves its last epoch itself
            report({"epoch": i + 1, "run": i + 1})
        return run

    def predict_cohort(self, X: Cohort | ArrayLike) -> Prediction:
        check_is_fitted(self)
        inputs = self._inputs(X)
        found = self._predict(X if isinstance(X, Cohort) else inputs)  # runs may need covariates
        return found.in_order(self.by_size_)

    def _predict(self, inputs: Inputs | Cohort) -> Prediction:
        """Means over the runs, with subgroups in the order of the consensus; fields that no run has stay None."""
        by_field: dict[str, list[np.ndarray]] = {}
        for i, (run, order) in enumerate(zip(self.runs_, self.order_, strict=True)):
            found = run.predict_cohort(inputs)
            of_run = {
                "subgroup": found.subgroup[:, order],
                "by_centroid": None if found.by_centroid is None else found.by_centroid[:, order],
                "diagnosis": found.diagnosis,
                "embedding": found.embedding if i == self.best_ else None,  # their mean is meaningless
            }
            for name, values in of_run.items():
                if values is not None:
                    by_field.setdefault(name, []).append(values)
        mean: dict[str, Any] = {name: np.mean(values, axis=0) for name, values in by_field.items()}
        subgroup = mean["subgroup"].argmax(axis=1)
        agreement = sum(of_run.argmax(axis=1) == subgroup for of_run in by_field["subgroup"]) / self.runs
        return Prediction(**{"diagnosis": None, **mean, "agreement": agreement})

    def vectors(self, cohort: Cohort) -> np.ndarray | None:
        return self.best_run_.vectors(cohort)

    def refit(self, vectors: np.ndarray, diagnosis: np.ndarray, seed: int) -> Assign | None:
        return self.best_run_.refit(vectors, diagnosis, seed)

    @property
    def makes_controls_uniform(self) -> bool:
        return self.best_run_.makes_controls_uniform

    def caveats(self) -> list[str]:
        sentences = []
        if self.stability_ < AGREEING:
            sentences.append(
                f"The subgroups depend on the random seed: between two of the {self.runs} runs, the adjusted Rand "
                f"index is {self.stability_:.2f} on average, where 1 is the same subgroups and 0 is that of "
                "random labels. Another seed may give other subgroups."
            )
        warnings = [warned for run in self.runs_ if (warned := run.caveats())]
        if warnings:
            sentences.append(f"{len(warnings)} of {self.runs} runs warn of themselves, as this one: {warnings[0][0]}")
        return sentences

    def remarks(self) -> list[str]:
        """Notes of the best run."""
        return self.best_run_.remarks()

    def tensors(self) -> dict[str, Tensor]:
        of_runs = {f"run{i}.{name}": t for i, run in enumerate(self.runs_) for name, t in run.state().items()}
        shared = self._encoder_tensors(self.runs_[0].tensors())
        for i in range(1, self.runs):  # a frozen encoder is large, and the same in all runs unless it is fine-tuned
            own = {f"run{i}.{name}" for name in shared}
            if all(torch.equal(of_runs[f"run{i}.{name}"], t) for name, t in shared.items()):
                of_runs = {name: t for name, t in of_runs.items() if name not in own}
        own = {name: np.asarray(getattr(self, f"{name}_")) for name in ("order", "best", "agreement", "stability")}
        return {**of_runs, **{name: torch.as_tensor(value) for name, value in own.items()}}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self.order_, self.agreement_ = tensors["order"].numpy(), tensors["agreement"].numpy()
        self.best_, self.stability_ = int(tensors["best"]), float(tensors["stability"])
        if self.order_.shape != (self.runs, self.n_subgroups):
            raise ValueError(
                f"Expected {self.runs} runs of {self.n_subgroups} subgroups. Received a model of "
                f"shape {self.order_.shape}."
            )
        is_order = (np.sort(self.order_, axis=1) == np.arange(self.n_subgroups)).all()
        if not is_order or self.agreement_.shape != (self.runs,) or self.best_ not in range(self.runs):
            raise ValueError(f"Expected an order of subgroups for each of {self.runs} runs. Received: none.")
        shared = self._encoder_tensors(without_prefix("run0.", tensors))
        self.runs_ = [
            self.run(i).restore(self.input_shape_, {**shared, **without_prefix(f"run{i}.", tensors)})
            for i in range(self.runs)
        ]

    def _encoder_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the frozen encoder among the tensors of a run."""
        prefix = getattr(self.run(0), "encoder_prefix", None)
        return {name: t for name, t in tensors.items() if prefix is not None and name.startswith(prefix)}

    def predict_blank(self) -> dict[str, Tensor]:
        return self.best_run_.predict_blank()


def align(labels: np.ndarray, consensus: np.ndarray, n_subgroups: int) -> np.ndarray:
    """(n_subgroups,): the subgroup of a run that matches each subgroup of the consensus; always a permutation."""
    mapping = match_labels(labels, consensus, n_subgroups)
    # where fewer subgroups are found than were asked for, the unmatched ones take the free places
    mapping[mapping < 0] = np.setdiff1d(np.arange(n_subgroups), mapping)
    return np.argsort(mapping)


def _one_run_expected(received: str, why: str) -> str:
    return (
        f"Expected a method that finds subgroups in one run. Received: {received!r}, which {why}. "
        "Choose another, such as DeepUCSL ('deep_ucsl')."
    )
