"""Which value of a diagnosis that was given as an array means patient."""

import math
from typing import Any

from phenogroups.data.cohort import CohortError

CONTROL_WORDS = (
    "control", "controls", "healthy control", "healthy controls", "healthy", "normal", "unaffected", "ctrl", "ctl",
    "con", "hc", "cn", "nc", "td", "hv",
)  # fmt: skip
NUMBERS = {"false": 0.0, "true": 1.0, "zero": 0.0, "one": 1.0, "two": 2.0, "three": 3.0}  # that are written as words


def patient_value(values: list[Any], named: Any = None) -> Any:
    """Which of one or two different values means patient; None where all are controls.

    Of two numbers the greater means patient, and a single 0 means control. Of two words exactly one must be among
    CONTROL_WORDS (capital letters and underscores do not matter), unless the patients' word is `named`.
    """
    if named is not None:
        if named not in values and len(values) > 1:
            raise CohortError(f"Expected patient={named!r} among the values of y. Received: {_listed(values)}.")
        return named if named in values else None
    numbers = [_number(value) for value in values]
    if None not in numbers:
        greatest = max(zip(numbers, values, strict=True), key=lambda pair: pair[0])  # pyright: ignore
        return None if len(values) == 1 and greatest[0] == 0 else greatest[1]
    others = [value for value in values if _plain(value) not in CONTROL_WORDS]
    if len(others) == len(values) - 1:
        return others[0] if others else None
    raise CohortError(
        "Expected y as 0 (control) and 1 (patient), or as two words of which one is known to mean control "
        f"({', '.join(CONTROL_WORDS)}). Received: {_listed(values)}. Say which value means patient, for "
        f"example fit(X, y, patient={values[0]!r})."
    )


def _number(value: Any) -> float | None:
    word = _plain(value)
    try:
        number = NUMBERS[word] if word in NUMBERS else float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _plain(value: Any) -> str:
    return " ".join(str(value).lower().replace("_", " ").split())


def _listed(values: list[Any]) -> str:
    return " and ".join(map(repr, values))
