"""One verdict on the subgroups of a run, by the rules of docs/guides/is_it_real.md."""

from dataclasses import dataclass
from typing import Literal

Answer = Literal["convincing", "plausible", "not stable", "artefact likely", "no subgroups"]


@dataclass(frozen=True)
class Verdict:
    """What a reader should think of the subgroups, before anything else.

    Parameters
    ----------
    answer
        The verdict in a word or two.
    headline
        The verdict in a sentence.
    why
        The reasons, in at most two sentences.
    next_step
        What to do next, in a sentence.
    """

    answer: Answer
    headline: str
    why: tuple[str, ...]
    next_step: str
