"""From a cohort to the number of its subgroups: embed all subjects, then compare numbers in these embeddings."""

import io
import json
from collections.abc import Callable
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

import numpy as np

from phenogroups.data.cohort import Cohort
from phenogroups.data.writing import write_whole
from phenogroups.evaluation.number import Choice, choose, disease_vectors
from phenogroups.methods import DeepUCSL, Method, settings_of
from phenogroups.training.em import embed_after_one_epoch
from phenogroups.training.run import versions

ENCODERS = 3  # that are trained on all subjects, from different random weights
MOST_SUBJECTS = 3000  # of a sample, half of them patients where there are enough; more would hardly change the answer
OF_THE_NETWORK = (
    "encoder", "weights", "fine_tune", "backbone_rate", "augmentation", "batch_size", "steps", "learning_rate",
    "device", "precision", "seed",
)  # fmt: skip

Progress = Callable[[str], None]


def number_of_subgroups(
    cohort: Cohort,
    method: Method,
    *,
    least: int = 2,
    most: int = 6,
    cache_dir: str | Path | None = None,
    progress: Progress = lambda _: None,
) -> Choice:
    """Choose the number of subgroups among the patients of a cohort; 1 means that none were found.

    Parameters
    ----------
    cohort
        The subjects.
    method
        The method whose settings say which network embeds images.
    least
        Smallest number to consider.
    most
        Largest number to consider.
    cache_dir
        Folder for intermediate results, from which an interrupted search continues.
    progress
        Called with a few words about each step.

    Returns
    -------
    Choice
        The number (`subgroups`), the reason in words, and all criteria as a table.

    Examples
    --------
    >>> from phenogroups import DeepUCSL, drawn_table, number_of_subgroups
    >>> number_of_subgroups(drawn_table(300, separation=8), DeepUCSL(), most=3).subgroups
    2
    """
    if not 2 <= least <= most:
        raise ValueError(f"Expected numbers of subgroups such as 2:6, from 2 on. Received: {least}:{most}.")
    cohort.require(most)
    sample = cohort[_rows(cohort, method.seed)]
    embeddings = _embeddings(sample, method, None if cache_dir is None else Path(cache_dir), progress)
    return choose(
        embeddings, sample.diagnosis, sample.covariates, least=least, most=most, seed=method.seed, progress=progress,
    )  # fmt: skip


def sample_vectors(
    cohort: Cohort, method: Method, cache_dir: str | Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the subjects whose subgroups were counted, and their vectors (n, components)."""
    rows = _rows(cohort, method.seed)
    sample = cohort[rows]
    embeddings = _embeddings(sample, method, None if cache_dir is None else Path(cache_dir), lambda _: None)
    return rows, disease_vectors(embeddings, sample.is_patient, sample.covariates).numpy()


def _rows(cohort: Cohort, seed: int) -> np.ndarray:
    """Rows of at most MOST_SUBJECTS subjects, half of them patients where there are enough."""
    rng = np.random.default_rng(seed)
    ill, well = np.flatnonzero(cohort.is_patient), np.flatnonzero(~cohort.is_patient)
    patients = min(len(ill), max(MOST_SUBJECTS // 2, MOST_SUBJECTS - len(well)))
    controls = min(len(well), MOST_SUBJECTS - patients)
    return np.sort(np.concatenate([rng.permutation(ill)[:patients], rng.permutation(well)[:controls]]))


def _embeddings(cohort: Cohort, method: Method, cache_dir: Path | None, progress: Progress) -> list[np.ndarray]:
    """The vectors in which numbers of subgroups are compared: features, or embeddings of images by several encoders."""
    if cohort.inputs.ndim == 2:
        return [np.asarray(cohort.inputs, np.float64)]
    known = {f.name for f in fields(method)}
    network = DeepUCSL(**{name: getattr(method, name) for name in OF_THE_NETWORK if name in known})
    encoder = network.choose_frozen_encoder(cohort.inputs)
    if encoder is not None:  # its embeddings are a table, and do not depend on random weights
        progress("embedding images")
        return [network.embed_cohort(encoder, cohort.inputs, network.device).astype(np.float64)]
    seen = {"cohort": cohort.fingerprint, "settings": settings_of(network), "versions": versions()}
    digest = sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]
    found, inputs = [], cohort.inputs
    for i in range(ENCODERS):
        progress(f"encoder {i + 1} of {ENCODERS}")
        path = None if cache_dir is None else cache_dir / f"embedding-{digest}-{i}.npy"
        if path is not None and path.is_file():
            found.append(np.load(path, allow_pickle=False))
            continue
        z = embed_after_one_epoch(network, inputs, cohort.diagnosis, i).numpy()
        found.append(z)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            np.save(content, z)
            write_whole(path, content.getvalue())
    return found
