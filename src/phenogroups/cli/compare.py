"""The command compare."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from tyro.conf import arg

from phenogroups.cli.options import CohortOptions, Settings, option, parse_settings
from phenogroups.cli.progress import ERR, comparing_bar, note, say
from phenogroups.cli.stopping import exit_code

if TYPE_CHECKING:
    from phenogroups.data.cohort import Cohort
    from phenogroups.data.study import Study
    from phenogroups.workflows.compare import Comparison


@dataclass(frozen=True, kw_only=True)
class Compare(CohortOptions):
    """Run several methods with several seeds on one cohort and print the paper's table; continue an interrupted one.

    For example: phenogroups compare drawn --methods deep_ucsl simclr kmeans --seeds 3
    """

    methods: Annotated[tuple[str, ...], arg(metavar="METHOD ...")]
    """Methods by name, or all; a wrong name lists them."""
    seeds: Annotated[int | None, option("INT", "3")] = None
    """Number of seeds: 0, 1, 2, ... Each holds out another part of the cohort, the same for all methods."""
    splits: Annotated[int | None, option("INT")] = None
    """Instead of seeds: number of divisions into training and validation part, as in the paper's psychiatry table."""
    held_out: Annotated[float | None, option("SHARE", "0.2, or the recipe's; of splits 0.1")] = None
    """Share of the subjects not trained on, and scored where there is no test cohort."""
    test: Annotated[Path | None, option("TABLE")] = None
    """Other people to score on, in a table with the same columns; all of the cohort is then trained on."""
    subgroups: Annotated[int | None, option("INT", "as many as are known, or 2")] = None
    """How many subgroups to look for."""
    set: Settings = ()
    """Settings of all methods that have them, or of one: epochs=20 simclr.temperature=0.5; a wrong name lists all."""
    fine_tune: bool = False
    """Train pretrained encoders too, once subgroups are found; kept only where that helps the diagnosis."""
    out: Path = Path("phenogroups-compare")
    """Folder to write, or to continue in."""
    isolated: bool = True
    """A process of its own for each cell, which measures its memory and survives its crash."""

    def run(self) -> int:
        with ERR.status("starting"):
            from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings
            from phenogroups.workflows.compare import build_methods, check_folder, compare

        recipe = self.chosen_recipe
        subgroups = self.subgroups or (None if self.recipe is None else recipe.subgroups)
        settings = {**parse_settings(self.set), **({"fine_tune": True} if self.fine_tune else {})}
        # a wrong name, setting or folder raises before anything is read
        built = build_methods(self.methods, settings, subgroups or 2, recipe)
        check_folder(self.out)
        cohort, test = self.cohorts(resized=any(method.by_lite0 for method in built.values()))
        try:
            with comparing_bar() as progress, keeping_embeddings(embeddings_folder(self.cache), note):
                found = compare(
                    cohort, self.methods, self.out, seeds=self.seeds, splits=self.splits, n_subgroups=subgroups,
                    settings=settings, recipe=recipe, test=test, held_out=self.held_out, isolated=self.isolated,
                    progress=progress, note=note,
                )  # fmt: skip
        except KeyboardInterrupt as stop:
            note(f"phenogroups: stopped; finished cells are kept in {self.out}, the same command continues.")
            return exit_code(stop)
        print_comparison(found)
        return 1 if found.failures else 0

    def cohorts(self, *, resized: bool) -> "tuple[Cohort | Study, Cohort | None]":
        """The cohort or example, and the test cohort if there is one."""
        study = self.example()
        if study is not None:
            return study, None
        cohort, spec = self.read(Path(self.cohort), resized=resized)
        if self.test is None:
            return cohort, None
        test, _ = self.read(self.test, spec)
        both = sorted({*cohort.group} & {*test.group}) if spec.group or spec.subject else []  # else rows have no names
        if both:
            raise ValueError(
                f"Expected other people in the test table. Received: {', '.join(both[:5])} in both tables "
                f"({len(both)} in all). Drop them from one."
            )
        return cohort, test


def print_comparison(found: "Comparison") -> None:
    found.print_table(Console(width=500))  # a narrow terminal wraps lines instead of cutting numbers
    for sentence in found.sentences():
        say(sentence)
    ran_now = f"{found.ran} of {len(found.cells)} cells were run now"
    say(f"Written: {found.folder} ({ran_now}). Open {found.folder / 'compare.html'} in a browser.")
