"""Write the tables of docs/performance.md and docs/scale.md from benchmarks/results: python benchmarks/performance.py.

A table stands between the markers `<!-- NAME -->` and `<!-- /NAME -->`; whatever is outside of them is left alone.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
PAGE, SCALE_PAGE = DOCS / "performance.md", DOCS / "scale.md"
NOT_MEASURED = "*Not measured.*"
WORDS = {
    "kmeans": "K-means",
    "sinkhorn_kmeans": "Sinkhorn K-means",
    "deep_ucsl": "two E-steps of Deep UCSL (defaults, half patients)",
}
OURS = ("kmeans", "sinkhorn_kmeans")

Found = dict[str, Any]
Make = Callable[[Found], list[str]]

# of docs/scale.md. A default training: 6 epochs and two more warm-ups, an embedding of everybody after each epoch and
# before the end, one pass of recalibration, and two predictions
EPOCHS, EMBEDDINGS, E_STEPS, BATCH = 8, 10, 6, 256
POWERS, MANY = (6, 8), 64
HELD = {  # bytes for each subject of the cohort
    "every process: diagnosis, order of a pass, beliefs": 24,  # two integers, two single-precision probabilities
    "every process: names of subjects and groups, about": 80,
    "first process: predictions for tables and page, about": 560,
}


def estep(found: Found) -> list[str]:
    lines = table(
        ("embeddings", "subgroups", "scikit-learn, ms", *(WORDS[name] for name in OURS), "one plan, ms", "by POT, ms"),
        (
            (
                f"{cell['count']:,}", cell["subgroups"], ms(cell["seconds"]["scikit-learn"]),
                *(f"{ms(cell['seconds'][name])} ms ({cell['ratio'][name]:.2f})" for name in OURS),
                *(plan(cell["plan"].get(name)) for name in ("here", "pot")),
            )
            for cell in found["cells"]
        ),
    )  # fmt: skip
    return [*lines, "", *growth(found["cells"])]


def growth(cells: list[Found]) -> list[str]:
    """How much longer ten times as many take."""
    lines = []
    for name in ("scikit-learn", *OURS):
        took = {(cell["count"], cell["subgroups"]): median(cell["seconds"][name]) for cell in cells}
        ratios = [
            f"{took[count, k] / took[fewer, k] * fewer / count:.2f}"
            for (count, k) in sorted(took)
            if (fewer := max((c for c, other in took if other == k and c < count), default=0))
        ]
        if ratios:
            lines.append(f"- {WORDS.get(name, name)}, time per embedding beside that of the next smaller count: "
                         f"{', '.join(ratios)} (1 is linear).")  # fmt: skip
    return lines


def estep_memory(found: Found) -> list[str]:
    return table(
        ("", "embeddings", "their MB", "subgroups", "MB beyond them"),
        (
            (WORDS[each["what"]], f"{each['count']:,}", f"{each['embeddings_mb']:.0f}", each["subgroups"],
             f"{each['beyond_mb']:.0f}")
            for each in found["memory"]
        ),
    )  # fmt: skip


def training_speed(found: Found) -> list[str]:
    return table(
        ("encoder", "input", "batch", "product, images/s", "bare loop, images/s", "ratio", "product, MB", "bare, MB"),
        (
            (
                row["encoder"], size(row["shape"]) + f" ({row['augmentation']})", row["batch_size"],
                *(f"{row['inputs_per_second'][name]:.4g}" for name in ("product", "bare")), f"{row['ratio']:.2f}",
                *(f"{row['peak_mb'][name]:.0f}" for name in ("product", "bare")),
            )
            for row in found["rows"]
        ),
    )  # fmt: skip


def precision(found: Found) -> list[str]:
    """Of the bare loop."""

    def said(variant: Found) -> str:
        return variant.get("failed") or f"{variant['rate']:.4g}/s, {variant['loss']:.4f}"

    rows = [row for row in found["rows"] if "variants" in row]
    return table(
        ("encoder", "input", "float32: images/s, loss", "bf16-mixed", "torch.compile"),
        (
            (row["encoder"], size(row["shape"]), *(said(each) for each in row["variants"].values()))
            for row in rows
        ),
    )  # fmt: skip


def epoch_cost(found: Found) -> list[str]:
    return table(
        ("method", "views", "seconds per epoch and view", "times the classifier's"),
        (
            (name, found["views"][name], f"{median(found['seconds_per_view'][name]):.2f}", f"{ratio:.2f}")
            for name, ratio in sorted(found["ratios"].items(), key=lambda item: item[1])
        ),
    )  # fmt: skip


def memory(found: Found) -> list[str]:
    side = found["options"]["size"]
    lines = table(
        (f"images of {side} x {side}", "on disk, MB", "peak, MB"),
        ((f"{int(n):,}", f"{int(n) * side**2 * 4 / 2**20:.0f}", f"{mb:.0f}") for n, mb in found["peak_mb"].items()),
    )
    return [*lines, "", f"An epoch from disk takes {found['ratio']:.2f} times as long as one from memory."]


def predict(found: Found) -> list[str]:
    def cells(row: Found) -> Iterable[str]:
        rates = {name: median(one["images_per_second"] for one in rows) for name, rows in row["rounds"].items()}
        yield f"{row['images']:,} x {row['side']} x {row['side']}, {row['files']}"
        yield row["encoder"]
        yield from (f"{rates[name]:.4g}" for name in ("product", "bare"))
        yield f"{row['ratio']:.2f}"
        yield ", ".join(f"{mb:.0f} ({int(count):,} images)" for count, mb in row["peak_memory_mb"].items())

    titles = ("images", "encoder", "product, images/s", "bare encoder, images/s", "ratio", "peak memory, MB")
    return table(titles, map(cells, found["rows"].values()))


def report(found: Found) -> list[str]:
    names = {"report_seconds": "to make, s", "page_mb": "page, MB", "open_seconds": "to open, s"}
    values = [found["summary"].get(name) for name in names]
    return table(
        ("subjects", *names.values()),
        [(f"{found['subjects']:,}", *("–" if value is None else f"{value['mean']:.2f}" for value in values))],
    )


def ranks(found: Found) -> list[str]:
    rows = found["found"]
    return table(
        ("", *(f"{count} process{'es' if int(count) > 1 else ''}" for count in rows)),
        ((name, *(f"{row[name]:.4g}" for row in rows.values())) for name in next(iter(rows.values()))),
    )


def scale_measured(found: Found) -> list[str]:
    one, several = (found["found"][str(count)] for count in found["options"]["processes"])
    sizes, count = found["options"]["sizes"], found["options"]["processes"][1]
    timed = {
        f"{what}{size}": f"{what}, images of {size} pixels a side" for size in sizes for what in ("epoch", "embedding")
    }
    timed |= {"e_step": "E-step", "iteration": "of which one iteration of EM, per patient"}
    sent = {f"step{size}_kb": f"each process sends per gradient step, kB, {size} pixels" for size in sizes}
    sent |= {
        "e_step_kb": "each process sends per E-step, kB", "e_step_calls": "collective calls per E-step",
        "bytes_per_subject": "E-step, peak memory per own subject, bytes",
    }  # fmt: skip
    rows = [
        (f"{title}, µs of all processors per subject", *(f"{each[f'{name}_cpu_us']:.4g}" for each in (one, several)),
         f"{one[f'{name}_us'] / several[f'{name}_us']:.2f}")
        for name, title in timed.items()
    ]  # fmt: skip
    rows += [(title, *(f"{each[name]:.4g}" for each in (one, several)), "") for name, title in sent.items()]
    lines = table(("", "1 process", f"{count} processes", "times as fast"), rows)
    if "agreement" in found:
        same = found["agreement"]
        lines += [
            "",
            f"Subgroups of the demo cohort ({found['options']['subjects']:,} digits), adjusted Rand index: "
            f"{same['processes']:.3f} between one and {count} processes, "
            f"{same['seeds']:.3f} between two seeds of one.",
        ]
    return lines


def scale_computed(found: Found) -> list[str]:
    one, several = (found["found"][str(count)] for count in found["options"]["processes"])
    size = found["options"]["sizes"][0]
    per_image = EPOCHS * one[f"epoch{size}_cpu_us"] + EMBEDDINGS * one[f"embedding{size}_cpu_us"]
    memory = one["bytes_per_subject"]

    def rows(subjects: int) -> list[str]:
        steps = subjects // BATCH
        return [
            duration(subjects * per_image / 1e6),
            duration(subjects * E_STEPS * one["e_step_cpu_us"] / 1e6),
            f"{steps:,}: {volume(steps * several[f'step{size}_kb'] * 1e3)}",
            volume(subjects * size**2 * 4),
            volume(subjects * memory),
            volume(subjects * memory / MANY),
            *(volume(subjects * each) for each in HELD.values()),
        ]

    titles = [
        "processor time of training, in all", f"of it, E-steps without embeddings ({E_STEPS})",
        "gradient steps per epoch, and what each process sends", f"inputs on disk ({size} pixels a side)",
        "memory of the E-step, 1 process", f"the same, each of {MANY} processes", *HELD,
    ]  # fmt: skip
    columns = zip(titles, *(rows(10**power) for power in POWERS), strict=True)
    lines = table(("", *(f"10^{power} subjects" for power in POWERS)), columns)
    said = (
        f"Processor time per image: {EPOCHS} x {one[f'epoch{size}_cpu_us']:.0f} µs + {EMBEDDINGS} x "
        f"{one[f'embedding{size}_cpu_us']:.0f} µs = {per_image / 1e3:.2g} ms."
    )
    return [said, "", *lines]


TABLES: dict[str, tuple[str, Make]] = {  # marker -> file of results, and what is made of it
    "estep": ("estep", estep),
    "estep-memory": ("estep", estep_memory),
    "training-speed": ("training_speed", training_speed),
    "precision": ("training_speed", precision),
    "epoch-cost": ("epoch_cost", epoch_cost),
    "memory": ("memory", memory),
    "predict": ("predict", predict),
    "report": ("report-deep_ucsl", report),
    "ranks": ("ranks", ranks),
}


SCALE_TABLES = {"measured": ("ranks", scale_measured), "computed": ("ranks", scale_computed)}


def filled(page: str, results: Path = RESULTS, tables: Mapping[str, tuple[str, Make]] = TABLES) -> str:
    """The page with every table made anew."""
    for name, (file, make) in tables.items():
        path = results / f"{file}.json"
        lines = [NOT_MEASURED]
        if path.is_file():
            found = json.loads(path.read_text())
            lines = [*make(found), "", circumstances(found["machine"], path.name)]
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not between.search(page):
            raise ValueError(
                f"Expected the markers of {name!r} in the page. Received: none. Write <!-- {name} --> there."
            )
        text = "\n".join(lines) + "\n"
        page = between.sub(lambda match, text=text: match[1] + text + match[2], page)
    return page


def circumstances(machine: Found, file: str) -> str:
    load = machine["load"][0]
    shared = ", **shared with other programs**" if load > machine["cores"] + 0.5 else ""
    return (
        f"[{file}](../benchmarks/results/{file}): {machine['processor']}, {machine['cores']} cores, "
        f"{machine['threads']} threads, load {load:.1f} at the end{shared}."
    )


def table(titles: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *([str(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} seconds"


def volume(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{float(f'{count / size:.2g}'):g} {unit}"
    return f"{count / 1e3:.2g} kB"


def ms(seconds: list[float]) -> str:
    return f"{1000 * median(seconds):.3g}"


def plan(found: Found | None) -> str:
    return "–" if found is None else f"{ms(found['seconds'])} (sizes off by {found['error']:.0e})"


def size(shape: list[int]) -> str:
    return " x ".join(map(str, shape))


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    SCALE_PAGE.write_text(filled(SCALE_PAGE.read_text(), tables=SCALE_TABLES))
