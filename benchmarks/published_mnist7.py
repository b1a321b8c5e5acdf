"""The published recipe of Deep UCSL on MNIST 7, all 75 epochs of it, scored after every epoch.

python benchmarks/published_mnist7.py --data DIR --labels FILE --kept FOLDER. It takes hours: an interrupted run goes on
after the last epoch that it kept in the folder. Subgroups are scored on the labelled training sevens, whose labels the
method never gets. The JSON is written after every epoch, so that an unfinished run can be reported as such.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from common import ERR, PublicData, Row, about_cohort, machine, main, scores_of, write_result
from torch import Tensor

from phenogroups.cli import parse_settings, say, training_bar
from phenogroups.data.examples.mnist import mnist
from phenogroups.evaluation.scores import score
from phenogroups.methods import DeepUCSL, Prediction, settings_of
from phenogroups.recipes import recipe
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.run import versions

SHOWN = ("epoch", "classification", "clustering", "subgroup_gate", "subgroup_centroid", "class_bacc", "size_B")


@dataclass(frozen=True)
class ReportedCheckpoint(Checkpoint):
    """Writes the history of the run to the benchmark's JSON with every epoch that it keeps."""

    name: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    def save(self, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        super().save(name, tensors, notes)
        write_result(self.name, {**self.about, "epochs": notes["history"]})
        row = notes["history"][-1] if notes["history"] else {}
        say("  ".join(f"{key} {row[key]:.4g}" for key in SHOWN if key in row), ERR)


@dataclass(frozen=True, kw_only=True)
class PublishedMNIST7(PublicData):
    """Deep UCSL on MNIST 7 with four 7 x 7 convolutions, 75 epochs and a learning rate of 1e-5."""

    kept: Path
    """Folder of checkpoints, from which an interrupted run goes on."""
    variant: Literal["deep_ucsl_paper", "deep_ucsl_paper_code"] = "deep_ucsl_paper_code"
    """As the paper's text says, or as its code does."""

    def run(self) -> None:
        train = self.some(mnist(7, data=self.data, labels=self.labels))
        test = self.some(mnist(7, data=self.data, split="test"))
        method = recipe("mnist7").build(self.variant, **parse_settings(self.set))
        assert isinstance(method, DeepUCSL)
        observe = method.observe

        def observe_and_score(network: Any, embedding: Tensor, diagnosis: Tensor, beliefs: Any) -> Row:
            read = method.read(network, embedding, beliefs)
            found = Prediction(
                embedding=embedding.numpy(), **{key: value.numpy(force=True) for key, value in read.items()}
            )
            return {**observe(network, embedding, diagnosis, beliefs), **scores_of(train, found)}

        method.observe = observe_and_score  # pyright: ignore[reportAttributeAccessIssue]
        settings = settings_of(method)
        about = {
            "options": asdict(self), "method": self.variant, "settings": settings, "cohort": about_cohort(train),
            "machine": machine(), "versions": versions(),
        }  # fmt: skip
        identity = {"variant": self.variant, "settings": settings, "subjects": len(train)}
        name = f"published_mnist7-{self.variant}{'-smoke' * (self.subjects is not None)}"
        checkpoint = ReportedCheckpoint(
            self.kept, identity, resume=True, note=lambda sentence: say(sentence, ERR), name=name, about=about
        )
        with checkpoint, training_bar(method) as progress:
            method.fit(train, progress=progress, checkpoint=checkpoint)
        final = {"class_bacc_of_test": score(test, method.predict_cohort(test)).class_bacc}
        final |= scores_of(train, method.predict_cohort(train))
        path = write_result(name, {**about, "epochs": method.history_, "final": final}, self.json)
        say(f"Written: {path}", ERR)


if __name__ == "__main__":
    main(PublishedMNIST7)
