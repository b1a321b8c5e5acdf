"""Deep UCSL: patients are clustered while controls must stay undecided between the clusters (Louiset et al.).

The symbols are the paper's: q is Q(c | x, y), the gate is p(c | x), expert k is p(y | x, c=k).
"""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import clone
from torch import Tensor, nn

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.contrast import SEARCHED, contrastive_mixture, thinned
from phenogroups.clustering.first_split import SEARCHED as SPLIT_AMONG
from phenogroups.clustering.first_split import first_split
from phenogroups.clustering.kmeans import (
    distance_ratio,
    inverse_square_proportions,
    kmeans,
    sinkhorn_kmeans,
    squared_distances,
)  # fmt: skip
from phenogroups.clustering.linear import membership_layer
from phenogroups.clustering.matching import match_members
from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.sinkhorn import sinkhorn
from phenogroups.clustering.space import DiseaseSpace, Scaler, fit_space
from phenogroups.data.batches import Batch
from phenogroups.data.cohort import Cohort, subgroup_letter
from phenogroups.losses import class_balance, experts_loss, gate_loss, lower_bound, mixture_of_experts_logit
from phenogroups.methods.base import Assign
from phenogroups.methods.deep import DeepMethod, cosine
from phenogroups.methods.election import specificities, split_features, vote
from phenogroups.methods.settings import AtLeast, Shape
from phenogroups.networks.architectures import MLP
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.em import Embed, Progress

LEAST_COMPONENTS = 10  # also of few patients
PATIENTS_PER_COMPONENT = 20
STABLE_AGREEMENT = 0.3  # of networks, or of halves of a table, on the first subgroups; below, they are called unstable
STILL_MOVING = 0.2  # share of the smallest subgroup that the last E-step may move
WARMUP_FACTOR = 0.1  # of the learning rate: differences among patients vanish as the diagnosis is learned
REFITTED = 2**15  # memberships, of subjects times subgroups, to which the gate is fitted at the end
CLUSTERERS = ("mixture", "sinkhorn_kmeans", "kmeans")

# The published recipe for MNIST, as the paper's text has it (Sec. 3.3 and Appendix F.2). Its code trains on the plain
# proportions of the distances instead of SK(Q), and scales robustly ("deep_ucsl_paper_code"): with equal sizes forced,
# a subgroup of 24 % cannot reach a Subgroup B-ACC above 0.83, so the 0.920 of Table 1 can only come from the code.
PAPER: dict[str, Any] = {
    "encoder": "paper",
    "clusterer": "sinkhorn_kmeans",
    "posterior": "sinkhorn",
    "restarts": 1,
    "warmup": 0,
    "components": None,
    "remove_severity": False,
    "winsorise": None,
    "warm_start": False,
    "epochs": 75,
    "steps": 1,
    "learning_rate": 1e-5,
    "schedule": "constant",
    "recalibrate_batch_norm": False,
    "stop_below": 0.0,
    "class_weights": (0.5, 0.5),
    "refit_gate": False,
}
PRESETS = {
    "deep_ucsl_paper": PAPER,
    "deep_ucsl_paper_code": {**PAPER, "posterior": "proportions", "scaler": "robust"},
    "deep_ucsl_paper_soft": {**PAPER, "pseudo_labels": "soft"},
    "deep_ucsl_paper_hard": {**PAPER, "pseudo_labels": "hard"},
    "deep_ucsl_paper_without_sinkhorn": {**PAPER, "clusterer": "kmeans"},
}


@dataclass(frozen=True)
class Beliefs:
    q: Annotated[Tensor, Shape("subjects", "subgroups")]  # q(c | x, y)
    center: Tensor  # the five tensors of the DiseaseSpace in which the patients were clustered
    scale: Tensor
    severity: Tensor
    basis: Tensor
    limit: Tensor
    centroids: Annotated[Tensor, Shape("subgroups", "components")]  # in that space
    log_sizes: Annotated[Tensor, Shape("subgroups")]
    specificity: Tensor  # (): how much more these subgroups split patients than controls
    held: Tensor = field(default_factory=lambda: torch.tensor(False))  # (): whether q stays that of the first E-step


@dataclass(eq=False, repr=False)
class DeepUCSL(DeepMethod, name="deep_ucsl", presets=PRESETS):
    """
    Parameters
    ----------
    clusterer
        How patients are clustered in an E-step: ``mixture``, ``sinkhorn_kmeans``, ``kmeans``, or any scikit-learn
        estimator that clusters vectors.
    restarts
        Number of networks that are warmed up for images, where they vote on the first subgroups. A table whose patients
        are clustered by ``mixture`` needs one: its first subgroups are found without a network.
    warmup
        Number of first epochs that learn the diagnosis alone, before the first E-step.
    components
        Largest number of principal components of the patients in which they are clustered; None: all.
    remove_severity
        Whether the axis from controls to patients is removed before clustering.
    winsorise
        Number of standard deviations to which coordinates are clipped; None: no clipping.
    scaler
        How embeddings are scaled before clustering, by the statistics of the patients.
    warm_start
        Whether the mixture starts from the beliefs of the previous E-step.
    posterior
        Posterior of K-means: balanced by Sinkhorn, or the raw proportions of the published code.
    epsilon
        Sinkhorn temperature.
    stop_below
        Stop one epoch after the moved share of the smallest subgroup stays below this for two E-steps.
    pseudo_labels
        Whether the beliefs that the network is trained on are soft, hard, or soft at first and hard at the end.
    hard_from
        Share of the epochs after which pseudo-labels are hard.
    class_weights
        Weights of controls and patients; None: by their frequency.
    experts_weight
        Weight of the experts' loss.
    gate_weight_patients
        Weight of the gate's loss on patients.
    gate_weight_controls
        Weight of the gate's loss on controls.
    refit_gate
        Whether, of images and volumes, the gate is fitted to the last beliefs once more, on plain inputs. Gradient
        steps on augmented ones stop short where a subgroup is small.

    Examples
    --------
    >>> from phenogroups import DeepUCSL, drawn_table
    >>> train, test = drawn_table(200).split(held_out=0.2)
    >>> model = DeepUCSL(n_subgroups=2, epochs=2, steps=2).fit(train)
    >>> found = model.predict_cohort(test)
    >>> found.subgroup.shape, found.diagnosis.shape
    ((40, 2), (40,))
    """

    clusterer: Any = "mixture"
    restarts: Annotated[int, AtLeast(1)] = 3
    warmup: Annotated[int, AtLeast(0)] = 1
    components: Annotated[int | None, AtLeast(1)] = 30
    remove_severity: bool = True
    winsorise: float | None = 2.5
    scaler: Scaler = "standard"
    warm_start: bool = True
    posterior: Literal["sinkhorn", "proportions"] = "sinkhorn"
    epsilon: float = 0.05
    stop_below: float = 0.02
    pseudo_labels: Literal["soft_to_hard", "soft", "hard"] = "soft_to_hard"
    hard_from: float = 1.0
    class_weights: tuple[float, float] | None = None
    experts_weight: float = 1.0
    gate_weight_patients: float = 1.0
    gate_weight_controls: float = 1.0
    refit_gate: bool = True

    beliefs_type: ClassVar[type] = Beliefs

    @property
    def supports_distributed(self) -> bool:  # pyright: ignore
        return self.clusterer in CLUSTERERS and self.scaler != "robust"  # quantiles and estimators need all patients

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {name: nn.Linear(encoder.dim, self.n_subgroups) for name in ("experts", "gate")}

    def learning_rate_factor(self, epoch: int) -> float:
        if self.schedule == "constant":
            return 1.0
        if epoch < self.warmup:
            return WARMUP_FACTOR
        return cosine((epoch - self.warmup) / max(self.epochs - self.warmup, 1))

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        if self.clusterer not in CLUSTERERS and not hasattr(self.clusterer, "fit"):
            raise ValueError(
                f"Expected clusterer {', '.join(map(repr, CLUSTERERS))} or a scikit-learn estimator. "
                f"Received: {self.clusterer!r}."
            )
        super()._fit(cohort, progress, checkpoint)

    def losses(self, network: Network, batch: Batch, beliefs: Beliefs | None) -> dict[str, Tensor]:
        z = network.encoder(batch.views[0])
        gate = network.heads["gate"](z)
        q = torch.full_like(gate, 1 / self.n_subgroups) if beliefs is None else beliefs.q[batch.index]
        patient = batch.diagnosis.to(gate)
        of_experts, of_gate = self._class_weights(patient)
        clustering = self.gate_weight_patients * of_gate[1] * gate_loss(gate, q, patient, self.comm)
        if beliefs is None or not beliefs.held:  # otherwise `read` makes subgroups uniform for controls
            on_controls = gate_loss(gate, q, 1 - patient, self.comm)
            clustering = clustering + self.gate_weight_controls * of_gate[0] * on_controls
        classification = experts_loss(network.heads["experts"](z), q, batch.diagnosis, of_experts)
        return {"classification": self.experts_weight * classification, "clustering": clustering}

    def _class_weights(self, patient: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (control, patient) of the loss of the experts and of that of the gate, which has a mean per class."""
        if self.class_weights is not None:
            given = patient.new_tensor(self.class_weights)
            return given, given
        balanced = class_balance(patient, self.comm)
        return balanced, torch.ones_like(balanced)

    def e_step(
        self, embedding: Tensor, diagnosis: Tensor, previous: Beliefs | Tensor | None, epoch: int, *,
        held: bool = False,
    ) -> Beliefs:  # fmt: skip
        is_patient = diagnosis == 1
        held = held or (isinstance(previous, Beliefs) and bool(previous.held))
        space = self._space(embedding, is_patient, comm=self.comm)
        z = space(embedding, is_patient)
        controls = space(embedding[self._spaced(~is_patient)])  # a sample, as contrasts use no more
        earlier = previous.q if isinstance(previous, Beliefs) else previous
        before = None if earlier is None else earlier[is_patient]
        centroids, log_sizes, space, soft = self._cluster(z, controls, space, before, held)
        (specific,) = specificities(soft[None], z, controls, self.comm)
        del z  # frees memory that matters for a large cohort
        if before is not None and not held:
            order = match_members(before.argmax(1), space(embedding, is_patient), centroids, self.comm)
            centroids, log_sizes, soft = centroids[order], log_sizes[order], soft[:, order]
        q = self._with_controls(harden(soft, self._softness(epoch)), is_patient)
        found = {"centroids": centroids, "log_sizes": log_sizes, "specificity": torch.tensor(specific)}
        return Beliefs(q, **vars(space), **found, held=torch.tensor(held))

    def networks(self, *, is_table: bool) -> int:
        unused = self.warmup == 0 or (is_table and self.clusterer == "mixture")  # `elect` uses the first alone
        return 1 if unused else self.restarts

    def elect(self, encoders: list[Embed], diagnosis: Tensor, features: Tensor | None) -> tuple[int, Beliefs]:
        """Of images, several encoders vote on a sample of the subjects; of a table, the features decide."""
        if self.warmup == 0 or (len(encoders) == 1 and (features is None or self.clusterer != "mixture")):
            return super().elect(encoders, diagnosis, features)
        if features is not None and self.clusterer == "mixture":
            return self._elect_by_features(encoders, diagnosis, features)
        first, _ = self.comm.offset_and_total(len(diagnosis))
        controls, patients = (thinned(first + torch.nonzero(diagnosis == y).flatten(), self.comm) for y in (0, 1))
        sample = torch.cat([controls, patients])
        is_patient = torch.arange(len(sample), device=sample.device) >= len(controls)
        views, augmented = [], []
        for encoder in encoders:
            z = encoder(sample)
            space = self._space(z, is_patient)
            z = space(z)
            views.append((z[is_patient], z[~is_patient]))
            augmented.append(tuple(space(encoder(patients, augmented=True)) for _ in range(2)))
        elected = vote(views, self.n_subgroups, self.seed, augmented)
        if elected is None:
            return 0, self.e_step(encoders[0](), diagnosis, None, self.warmup)
        chosen, q, self.agreement_ = elected
        return chosen, self._from_sample(encoders[chosen](), diagnosis, q)

    def _elect_by_features(self, encoders: list[Embed], diagnosis: Tensor, features: Tensor) -> tuple[int, Beliefs]:
        """The first subgroups of a table, found in its features, which do not depend on random weights.

        They are held from then on: in the embedding that a network learns from few patients, they would drift towards
        what the network has memorised (docs/deep_ucsl.md).
        """
        is_patient = diagnosis == 1
        patients, controls = (features[mask] for mask in (is_patient, ~is_patient))
        some, others = (self.comm.sample(each, SPLIT_AMONG) for each in (patients, controls))
        split, self.agreement_ = split_features(some, others, self.n_subgroups, self.seed)
        q = self._with_controls(split.posterior(patients), is_patient)
        return 0, self.e_step(encoders[0](), diagnosis, q, self.warmup, held=True)

    def refit(self, vectors: np.ndarray, diagnosis: np.ndarray, seed: int) -> Assign | None:
        if not bool(self.beliefs_.held):
            return None
        x, ill = torch.as_tensor(vectors), torch.as_tensor(diagnosis) == 1
        split = first_split(x[ill], x[~ill], self.n_subgroups, seed=seed)
        return lambda x: split.posterior(torch.as_tensor(x)).argmax(1).numpy()

    def _from_sample(self, embedding: Tensor, diagnosis: Tensor, q: Tensor) -> Beliefs:
        """Beliefs about all subjects, from those about a sample of the patients."""
        is_patient = diagnosis == 1
        space = self._space(embedding, is_patient, comm=self.comm)
        some = self.comm.gather(embedding[self._spaced(is_patient)])
        found = tied_mixture(space(some), self.n_subgroups, start=q, max_iterations=0)
        start = found.posterior(space(embedding, is_patient))
        return self.e_step(embedding, diagnosis, self._with_controls(start, is_patient), self.warmup)

    def _spaced(self, mask: Tensor) -> Tensor:
        """Positions of the subjects of this process in an evenly spaced sample of those whom the mask keeps."""
        rows = torch.nonzero(mask).flatten()
        return rows[self.comm.sampled_rows(len(rows), SEARCHED)]

    def _with_controls(self, of_patients: Tensor, is_patient: Tensor) -> Tensor:
        """(subjects, subgroups): a control has the same probability of all subgroups (paper, Eq. 5)."""
        q = of_patients.new_full((len(is_patient), self.n_subgroups), 1 / self.n_subgroups)
        q[is_patient] = of_patients
        return q

    def _space(self, embedding: Tensor, is_patient: Tensor, comm: Communicator = LOCAL) -> DiseaseSpace:
        """The space of clustering; it has fewer components than the setting where patients are few."""
        components = self.components
        if components is not None:
            patients = int(comm.all_reduce(is_patient.sum()))
            components = min(components, max(LEAST_COMPONENTS, patients // PATIENTS_PER_COMPONENT))
        return fit_space(
            embedding, is_patient, scaler=self.scaler, remove_severity=self.remove_severity, winsorise=self.winsorise,
            components=components, comm=comm,
        )  # fmt: skip

    def _cluster(self, z: Tensor, controls: Tensor, space: DiseaseSpace, before: Tensor | None, held: bool):
        """Centroids and log-sizes, the space of both, and the soft posteriors of the patients."""
        equal = z.new_zeros(self.n_subgroups)
        if self.clusterer == "mixture":
            if before is not None and (held or self.warm_start):
                # where the subgroups are held, only their centroids in this embedding are estimated
                climb = {"max_iterations": 0} if held else {}
                found = tied_mixture(z, self.n_subgroups, start=before, comm=self.comm, **climb)
            else:
                found = contrastive_mixture(z, controls, self.n_subgroups, seed=self.seed, comm=self.comm)
            # in whitened coordinates the mixture's posterior needs distances only
            whitened = replace(space, basis=space.basis @ found.whitening.to(space.basis))
            soft = before if held and before is not None else found.posterior(z)
            return found.means.to(z), found.log_sizes.to(z), whitened, soft
        if self.clusterer == "kmeans":
            centroids = kmeans(z, self.n_subgroups, seed=self.seed, comm=self.comm)
            return centroids, equal, space, inverse_square_proportions(squared_distances(z, centroids))
        if self.clusterer == "sinkhorn_kmeans":
            centroids = sinkhorn_kmeans(z, self.n_subgroups, epsilon=self.epsilon, seed=self.seed, comm=self.comm)
            soft = inverse_square_proportions(squared_distances(z, centroids))
            if self.posterior == "sinkhorn":
                soft = sinkhorn(soft, self.epsilon, comm=self.comm)  # Q' = SK(Q, epsilon), Sec. 3.3
            return centroids, equal, space, soft
        soft = cluster_with(self.clusterer, z, self.n_subgroups)
        centroids = soft.T @ z / soft.sum(0).clamp_min(torch.finfo(z.dtype).tiny)[:, None]
        return centroids, equal, space, soft

    def _softness(self, epoch: int) -> float:
        """1 at the first epoch, 0 from `hard_from` on: the paper's text (its printed formula has the two swapped)."""
        if self.pseudo_labels != "soft_to_hard":
            return float(self.pseudo_labels == "soft")
        return max(1 - epoch / max(self.hard_from * self.epochs, 1), 0)

    @torch.no_grad()
    def finish(self, network: Network, embedding: Tensor, diagnosis: Tensor, beliefs: Beliefs) -> None:
        """Fit the gate by its own loss, which is convex in its weights; not in a network of features."""
        if not self.refit_gate or isinstance(network.encoder, MLP):
            return
        some = self.comm.sampled_rows(len(embedding), REFITTED // self.n_subgroups)
        z, q, y = (self.comm.gather(rows[some]) for rows in (embedding, beliefs.q, diagnosis))
        share = y.double().mean()
        of_class = self._class_weights(y.to(z))[1] / torch.stack([1 - share, share])
        of_class = of_class * of_class.new_tensor([self.gate_weight_controls, self.gate_weight_patients])
        weight = of_class[y]
        gate = cast(nn.Linear, network.heads["gate"])
        gate.weight.data, gate.bias.data = membership_layer(z, q, weight / weight.mean())

    def read(self, network: Network, embedding: Tensor, beliefs: Beliefs) -> dict[str, Tensor]:
        gate, experts = network.heads["gate"](embedding), network.heads["experts"](embedding)
        # far from all centroids, differences of distances would lose half of their digits in single precision
        space = DiseaseSpace(*(getattr(beliefs, f.name).double() for f in fields(DiseaseSpace)))
        squared = squared_distances(space(embedding.double()), beliefs.centroids.double())
        mixture = torch.softmax(beliefs.log_sizes - squared / 2, dim=1)
        by_centroid = mixture if self.clusterer == "mixture" else inverse_square_proportions(squared)
        return {
            "subgroup": self._subgroup(gate, experts, beliefs),
            "diagnosis": mixture_of_experts_logit(experts, gate).sigmoid(),
            "by_centroid": by_centroid.to(embedding),
            "experts": experts,
        }

    def _subgroup(self, gate: Tensor, experts: Tensor, beliefs: Beliefs | None) -> Tensor:
        """p(c | x) = sum_y p(c | x, y) p(y | x), with p(c | x, y=0) = 1/K (paper, Eq. 5).

        Where subgroups are held, the gate learns p(c | x, y=1) from patients alone, and the experts' p(y | x) makes
        controls uniform. A gate trained to be uniform on controls separated fewer held-out patients
        (docs/deep_ucsl.md); where subgroups are not held, that training keeps them specific to the disease.
        """
        if beliefs is None or not beliefs.held:
            return gate.softmax(1)
        ill = mixture_of_experts_logit(experts, gate).sigmoid()[:, None]
        return ill * gate.softmax(1) + (1 - ill) / self.n_subgroups

    @property
    def makes_controls_uniform(self) -> bool:
        return bool(self.beliefs_.held)

    def caveats(self) -> list[str]:
        sentences = []
        if getattr(self, "agreement_", 1.0) < STABLE_AGREEMENT:
            others = "Halves of the cohort" if bool(self.beliefs_.held) else "Networks that were started differently"
            sentences.append(
                f"Nothing stable was found. {others}, in which the first subgroups were searched for as well, named "
                f"others than these: their agreement is {self.agreement_:.2f}, where 1 is the same subgroups and 0 is "
                "that of random labels."
            )
        moving = next((row["moved"] for row in reversed(getattr(self, "history_", [])) if "moved" in row), 0.0)
        if moving > STILL_MOVING:
            sentences.append(
                f"The subgroups had not settled when training ended: the last step moved {moving:.0%} as many patients "
                "as the smallest subgroup has. Train longer, or ask for fewer subgroups."
            )
        return sentences

    @torch.no_grad()
    def observe(
        self, network: Network, embedding: Tensor, diagnosis: Tensor, beliefs: Beliefs | None
    ) -> dict[str, float]:
        gate, experts = network.heads["gate"](embedding), network.heads["experts"](embedding)
        q = torch.full_like(gate, 1 / self.n_subgroups) if beliefs is None else beliefs.q
        bound = lower_bound(experts, gate, q, diagnosis).expand(len(q))
        row = {"bound": self.comm.mean(bound).item()}  # Eq. 4, per subject
        controls = diagnosis == 0
        of_controls = self._subgroup(gate[controls], experts[controls], beliefs)
        entropy = self.comm.mean(torch.special.entr(of_controls).sum(1)).item() / math.log(self.n_subgroups)
        row["gate_entropy_controls"] = entropy  # 1: the gate is uniform on controls
        if beliefs is not None:
            subgroup = torch.where(controls, -1, q.argmax(1))
            ratio = distance_ratio(embedding, subgroup, self.n_subgroups, self.comm)
            row |= {} if ratio is None else {"distance_ratio": ratio}
            row["specificity"] = beliefs.specificity.item()
            sizes = self.comm.all_reduce(torch.bincount(subgroup[~controls], minlength=self.n_subgroups))
            shares = (sizes / sizes.sum()).tolist()
            row |= {f"size_{subgroup_letter(k)}": share for k, share in enumerate(shares)}
        return row


def harden(q: Tensor, softness: float) -> Tensor:
    """softness * Q + (1 - softness) * OneHot(Q)."""
    return softness * q + (1 - softness) * F.one_hot(q.argmax(1), q.shape[1]).to(q)


def cluster_with(estimator: Any, z: Tensor, n_subgroups: int) -> Tensor:
    """Posteriors (n, K) from any scikit-learn estimator that gives labels or probabilities on vectors."""
    estimator, vectors = clone(estimator), z.cpu().numpy()
    if hasattr(estimator, "predict_proba"):
        q = torch.as_tensor(estimator.fit(vectors).predict_proba(vectors))
        found = q.shape[1]
    else:
        labels = torch.as_tensor(estimator.fit_predict(vectors)).long()
        found = int(labels.max()) + 1
        # -1 means noise in scikit-learn: such a patient has the same probability of all clusters
        q = F.one_hot(labels.clamp_min(0), max(found, 1)).double()
        q[labels < 0] = 1 / max(found, 1)
    if found > n_subgroups:
        raise ValueError(
            f"Expected the clusterer to find at most {n_subgroups} subgroups. Received: {found}. "
            f"Set its own number of clusters to {n_subgroups}, or ask for n_subgroups={found}."
        )
    return F.pad(q, (0, n_subgroups - found)).to(z)
