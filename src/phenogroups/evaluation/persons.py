"""Whether the images of one person are in the same subgroup, as they should be if subgroups are kinds of illness.

For each person with several patient rows (two eyes, several X-rays), agreement is the share of pairs of rows in the
same subgroup. Chance is the same after the subgroups are shuffled among all of these rows.
"""

from dataclasses import dataclass

import numpy as np

from phenogroups.evaluation.variables import permutation_p

FEWEST = 5  # smallest number of persons with several images for a test
ALARM = 0.05  # p above which the images of a person agree no more than by chance
CLEARLY = 0.25  # smallest share of the way from chance to full agreement that is clear
PERMUTATIONS, RESAMPLES = 1999, 1000


@dataclass(frozen=True)
class Agreement:
    """How often the images of a person are in one subgroup."""

    persons: int  # with several images
    images: int  # of theirs
    value: float  # mean over persons of the share of pairs of images that agree
    low: float  # 95 % interval, by bootstrap of persons
    high: float
    by_chance: float
    p: float  # that shuffled images agree as much

    @property
    def is_clear(self) -> bool:
        return self.p <= ALARM and self.value - self.by_chance >= CLEARLY * (1 - self.by_chance)

    def sentence(self) -> str:
        who = f"{self.persons} persons have several images ({self.images})"
        if self.persons < FEWEST:
            return f"{who}: too few to say whether the images of one person are put into the same subgroup."
        return (
            f"{who}. Two images of the same person are in the same subgroup in {self.value:.0%} of pairs (95% interval "
            f"{self.low:.0%} to {self.high:.0%}), where chance gives {self.by_chance:.0%} (p {self.p:.2g})."
        )

    def warnings(self) -> list[str]:
        """A sentence where the images of a person do not agree clearly more than chance."""
        if self.persons < FEWEST or self.is_clear:
            return []
        return [
            f"{self.sentence()} Subgroups that separate the images of one person describe the image, such as its "
            "position or exposure, rather than the person's illness."
        ]


def persons_agreement(subgroup: np.ndarray, person: np.ndarray, seed: int = 0) -> Agreement | None:
    """From the likeliest subgroup and the person of each patient row (n,); None where everybody has one image."""
    _, member, count = np.unique(np.asarray(person), return_inverse=True, return_counts=True)
    several = count[member] > 1
    if not several.any():
        return None
    labels = np.unique(np.asarray(subgroup)[several], return_inverse=True)[1]
    member = np.unique(member[several], return_inverse=True)[1]
    images = np.bincount(member)

    def agreeing(labels: np.ndarray) -> np.ndarray:
        """(persons,): of the pairs of a person's images, the share in one subgroup."""
        cells = np.bincount(member * (labels.max() + 1) + labels, minlength=len(images) * (labels.max() + 1))
        cells = cells.reshape(len(images), -1)
        return (cells * (cells - 1)).sum(axis=1) / (images * (images - 1))

    rng = np.random.default_rng(seed)
    of_person = agreeing(labels)
    chance = np.array([agreeing(rng.permutation(labels)).mean() for _ in range(PERMUTATIONS)])
    drawn = of_person[rng.integers(len(images), size=(RESAMPLES, len(images)))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    value = float(of_person.mean())
    return Agreement(
        len(images), len(labels), value, float(low), float(high), float(chance.mean()), permutation_p(chance, value)
    )
