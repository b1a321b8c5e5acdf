"""The commands demo and discover."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from phenogroups.cli.options import SearchOptions, Settings, option, parse_settings
from phenogroups.cli.progress import ERR, LOG, OUT, detail, note, say, searching, training_bar

if TYPE_CHECKING:
    from phenogroups.data.cohort import Cohort
    from phenogroups.evaluation.number import Choice
    from phenogroups.methods import Method
    from phenogroups.workflows.discover import Discovery

Epochs = Annotated[int | None, option("INT", "the method's")]
Processes = Annotated[int | None, option("INT", "1, or as torchrun says")]


@dataclass(frozen=True)
class Demo:
    """Draw a cohort of digits, find the two ways of writing a seven, and write a run folder with a report."""

    out: Path = Path("phenogroups-demo")
    """Run folder to write."""
    subjects: int = 6000
    """Digits to draw, half of them sevens."""
    share: float = 0.5
    """Share of the sevens that have a crossbar."""
    seed: int = 0
    """The same seed draws the same digits and gives the same result."""
    epochs: Epochs = None
    """Fewer epochs make a quicker, worse demo."""
    resume: bool = False
    """Continue after the last epoch of an interrupted demo; on the same machine, with bit-identical results."""
    overwrite: bool = False
    """Replace a finished run in the folder."""

    def run(self) -> None:
        from phenogroups.data.examples.drawn import drawn_digits
        from phenogroups.methods import build_method
        from phenogroups.training.run import check_writable
        from phenogroups.workflows.discover import discover

        check_writable(self.out, overwrite=self.overwrite)
        epochs = {} if self.epochs is None else {"epochs": self.epochs}
        method = build_method("deep_ucsl", {"seed": self.seed, **epochs})
        with OUT.status(f"drawing {self.subjects} digits"):
            cohort = drawn_digits(self.subjects, sizes=(1 - self.share, self.share), seed=self.seed)
        # both find the width of the pen, which varies in patients and controls alike
        plain = {"kmeans on pixels": "kmeans", "mixture on pixels": "gaussian_mixture"}
        beside = {words: build_method(name, {"seed": self.seed}) for words, name in plain.items()}
        with training_bar(method) as progress:
            found = discover(
                cohort, method, self.out, beside=beside, progress=progress, resume=self.resume,
                overwrite=self.overwrite, command=LOG.command, note=note, step=note,
            )  # fmt: skip
        print_discovery(found)
        LOG.write(self.out)


@dataclass(frozen=True, kw_only=True)
class Discover(SearchOptions):
    """Find subgroups among the patients of a table (one row per subject), a folder or an example; write a run folder.

    For example: phenogroups discover subjects.csv --image scan --diagnosis dx --control HC --patient SZ BD
    """

    out: Path = Path("phenogroups-run")
    """Run folder to write."""
    overwrite: bool = False
    """Replace a finished run in that folder, once the new one is complete; without this, it is refused."""
    method: Annotated[str | None, option("NAME", "deep_ucsl, or the recipe's")] = None
    """How subgroups are found; a wrong name lists all."""
    runs: int = 1
    """Number of runs, each with a seed of its own; what they agree on is reported, and who is undecided."""
    seed: int = 0
    """The same seed gives the same result."""
    devices: Processes = None
    """Processes that train together on each machine: one for each GPU, or several on one processor."""
    nodes: Processes = None
    """Machines that train together, each started with this command (docs/scale.md)."""
    fine_tune: bool = False
    """Train a pretrained encoder too, once the subgroups are found; kept only if that helps the diagnosis."""
    set: Settings = ()
    """Any other setting of the method, such as restarts=1 encoder=light; a wrong name lists all."""
    epochs: Epochs = None
    """Epochs of training."""
    device: Annotated[str | None, option("NAME", "auto")] = None
    """Where networks compute: auto, cpu, cuda or mps."""
    threads: Annotated[int | None, option("INT", "one for each core")] = None
    """Threads that compute; the last bits of a result depend on their number."""
    verbose: bool = False
    """Print what otherwise only stands in log.txt of the run folder (settings, versions, every epoch), and where an
    error came from."""
    log_losses: Annotated[Path | None, option("FILE")] = None
    """Write the losses to this CSV after every epoch, to be plotted while the run goes on; in the end, history.csv in
    the run folder has them and more."""
    resume: bool = False
    """Continue after the last epoch that an interrupted run of this command kept; on the same machine, with
    bit-identical results."""
    workers: int = 0
    """Threads that read ahead from a cohort on disk (--cache); their number does not change the result."""

    def run(self) -> None:
        from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings
        from phenogroups.training.run import check_writable

        if self.threads is not None:
            set_threads(self.threads)
        check_writable(self.out, overwrite=self.overwrite)
        if self.log_losses is not None and self.log_losses.exists() and not (self.overwrite or self.resume):
            raise ValueError(
                f"Expected a new file for the losses. Received: {self.log_losses}, which exists. Name another "
                "(--log-losses), or replace it (--overwrite)."
            )
        with keeping_embeddings(embeddings_folder(self.cache), note):
            self.discover()

    def discover(self) -> None:
        from dataclasses import asdict

        from phenogroups.workflows.discover import discover, report_none

        least, most = self.range_of_subgroups()
        single, method = self.build(least)
        self.join(single, searching=most > least)
        study, table = self.example(), None
        if study is not None:
            cohort = study.joined
        else:
            cohort, spec = self.read(Path(self.cohort), resized=single.by_lite0)
            table = asdict(spec)
        say_encoder(single, cohort)
        choice = self.choose(cohort, single, least, most) if most > least else None
        if choice is not None and choice.subgroups == 1:
            sentences = report_none(
                cohort, single, self.out, choice, table=table, cache_dir=self.choosing, command=LOG.command
            )
            for sentence in sentences:
                say(sentence)
            self.clean_up()
            say(
                f"Written: {self.out}. Open {self.out / 'report.html'} in a browser. Nothing was trained; "
                "--subgroups 2 --overwrite would divide the patients into two all the same."
            )
            LOG.write(self.out)
            return
        if choice is not None:
            say(choice.reason)
            method.set_params(n_subgroups=choice.subgroups)
        with training_bar(method, self.log_losses) as progress:
            if self.log_losses is not None and progress is None:
                name = self.method or self.chosen_recipe.method
                note(f"The method {name} has no epochs: {self.log_losses} is not written.")
            found = discover(
                cohort, method, self.out, held_out=self.share_held_out(), table=table, choice=choice, progress=progress,
                resume=self.resume, overwrite=self.overwrite, workers=self.workers, command=LOG.command, note=note,
                step=note,
            )  # fmt: skip
        if found.scores:  # in the first of several processes only
            self.clean_up()
            print_discovery(found)
            LOG.write(self.out)

    def build(self, n_subgroups: int) -> "tuple[Method, Method]":
        """The method, and the consensus of several runs of it if these are asked for; a wrong setting raises."""
        from phenogroups.methods import build_method, settings_of
        from phenogroups.training.run import versions

        recipe = self.chosen_recipe
        name = self.method or recipe.method
        of_recipe = recipe.settings_of(name)
        plain = {"epochs": self.epochs, "device": self.device, "fine_tune": self.fine_tune or None}
        settings = {"n_subgroups": n_subgroups, "seed": self.seed, **of_recipe, **parse_settings(self.set)}
        settings |= {setting: value for setting, value in plain.items() if value is not None}
        single = build_method(name, settings)
        detail(f"Method {name}, settings {settings_of(single)}, versions {versions()}.")
        unused = [setting for setting in recipe.settings if setting not in of_recipe]
        unknown = [setting for setting in unused if setting not in settings_of(single)]
        if unknown:
            note(f"Settings of the recipe that {name} does not have: {', '.join(unknown)}.")
        if len(unused) > len(unknown):
            own = ", ".join(setting for setting in unused if setting not in unknown)
            note(f"Settings of the recipe that are a part of {name} and stay as they are: {own}.")
        if self.runs == 1:
            return single, single
        consensus = {"method": name, "runs": self.runs, "seed": settings.pop("seed")}
        consensus["n_subgroups"] = settings.pop("n_subgroups")
        return single, build_method("consensus", {**consensus, "settings": settings})

    def join(self, method: "Method", *, searching: bool) -> None:
        """Start or join the other processes; all but the first print nothing from then on."""
        from phenogroups.training.distributed import launch

        if (self.devices or 1) * (self.nodes or 1) > 1:  # raises before another process is started
            method.require_distributed_support()
        comm = launch(self.devices, self.nodes, getattr(method, "device", "auto"))
        OUT.quiet = ERR.quiet = comm.rank > 0
        if searching and comm.world_size > 1:
            raise ValueError(
                f"Expected one number of --subgroups in several processes. Received: {self.subgroups}. Look for the "
                "number in one process (some thousand subjects are enough), then give it."
            )

    @property
    def choosing(self) -> Path:
        """Folder of intermediate results of the search for the number of subgroups, beside the run folder."""
        return self.out.resolve().with_name(self.out.resolve().name + ".choosing")

    def clean_up(self) -> None:
        """Delete intermediate results, which a finished run does not need."""
        import shutil

        shutil.rmtree(self.choosing, ignore_errors=True)

    def choose(self, cohort: "Cohort", method: "Method", least: int, most: int) -> "Choice":
        from phenogroups.workflows.choose import number_of_subgroups

        with searching("looking for the number of subgroups") as progress:
            return number_of_subgroups(
                cohort, method, least=least, most=most, cache_dir=self.choosing, progress=progress
            )


def set_threads(count: int) -> None:
    import torch

    if count < 1:
        raise ValueError(f"Expected --threads of at least 1. Received: {count}.")
    torch.set_num_threads(count)


def say_encoder(method: "Method", cohort: "Cohort") -> None:
    """Which encoder embeds images, and whether it is trained."""
    from phenogroups.methods import Consensus
    from phenogroups.networks.encoders import has_weights

    method = method.run(0) if isinstance(method, Consensus) else method
    if cohort.inputs.ndim == 2 or not hasattr(method, "encoder_for"):
        return
    name, weights = method.encoder_for(cohort.inputs), getattr(method, "weights", None)  # pyright: ignore
    if has_weights(name, weights):
        learns = "which are fine-tuned" if getattr(method, "fine_tune", False) else "which stay as they are"
        note(f"Images are embedded by the encoder {name} with weights learned elsewhere, {learns}.")
    else:
        note(f"Images are embedded by the encoder {name}, from random weights.")


def print_discovery(found: "Discovery") -> None:
    from phenogroups.report.tables import known_table, score_table

    for sentence in found.sentences:  # the verdict and all warnings before any figure
        say(sentence)
    table = score_table(found.scores)
    table.title = "Scores on the held-out subjects"
    OUT.print(table)
    if found.known is not None:
        table = known_table(found.known)
        table.title = "Held-out patients by subgroup found and by what is known of them"
        OUT.print(table)
    say(f"Written: {found.folder}. Open {found.folder / 'report.html'} in a browser.")
