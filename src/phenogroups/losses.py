"""Losses that several methods use: from logits to means over subjects.

Where a batch is spread over several processes, the mean of their losses is the loss of the whole batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator


def experts_loss(expert_logits: Tensor, q: Tensor, diagnosis: Tensor, class_weights: Tensor) -> Tensor:
    """Mixture-of-Classifying-Experts term of Eq. 4: - mean_i w_{y_i} sum_k Q_ik log p(y_i | x_i, c_i=k).

    The reference code divides every term by K; Adam's steps do not change with that, so it is left out.
    """
    y = diagnosis.to(expert_logits)[:, None].expand_as(expert_logits)
    each = F.binary_cross_entropy_with_logits(expert_logits, y, reduction="none")
    return (class_weights[diagnosis] * (q * each).sum(1)).mean()


def gate_loss(gate_logits: Tensor, q: Tensor, rows: Tensor, comm: Communicator = LOCAL) -> Tensor:
    """Clustering-head term of Eq. 4 over the given rows: mean_i CE(Q_i, p(c | x_i)); 0 without rows."""
    each = F.cross_entropy(gate_logits, q, reduction="none")
    return comm.world_size * (each * rows).sum() / comm.all_reduce(rows.sum()).clamp_min(1)


def class_balance(patient: Tensor, comm: Communicator = LOCAL) -> Tensor:
    """(2,): weights by which controls and patients have equal total weight, whatever their shares of the batch."""
    share = comm.all_reduce(patient.float().mean()) / comm.world_size
    return 0.5 / torch.stack([1 - share, share]).clamp_min(1 / (comm.world_size * len(patient)))


def diagnosis_loss(logit: Tensor, diagnosis: Tensor, comm: Communicator = LOCAL) -> Tensor:
    """Binary cross-entropy of p(y=1 | x), in which both classes have equal weight."""
    weight = class_balance(diagnosis, comm)[diagnosis]
    return F.binary_cross_entropy_with_logits(logit, diagnosis.to(logit), weight=weight)


def balanced_cross_entropy(logits: Tensor, labels: Tensor, comm: Communicator = LOCAL) -> Tensor:
    """Mean over the classes that occur of the mean cross-entropy in each; 0 for an empty batch."""
    counts = comm.all_reduce(torch.bincount(labels, minlength=logits.shape[1]))
    each = F.cross_entropy(logits, labels, reduction="none")
    return comm.world_size * (each / counts[labels]).sum() / (counts > 0).sum().clamp_min(1)


def info_nce(a: Tensor, b: Tensor, temperature: float, comm: Communicator = LOCAL) -> Tensor:
    """NT-Xent (Chen et al. 2020, Eq. 1): each view is classified among the other 2n - 1 as its subject's other view."""
    subjects = comm.rank * len(a) + torch.arange(len(a), device=a.device)
    return contrastive(a, b, subjects, temperature, comm)


def contrastive(a: Tensor, b: Tensor, labels: Tensor, temperature: float, comm: Communicator = LOCAL) -> Tensor:
    """SupCon (Khosla et al. 2020, Eq. 2): - mean over views of the mean log-probability of views of the same label.

    The views of this process are compared with the views of all processes.
    """
    h, labels = F.normalize(torch.cat([a, b]), dim=1), torch.cat([labels, labels])
    all_h, all_labels = comm.gather_batch(h), comm.gather(labels)
    position = torch.arange(len(all_h), device=h.device)
    itself = position[comm.shard(len(all_h)), None] == position
    log_p = F.log_softmax((h @ all_h.T / temperature).masked_fill(itself, -torch.inf), dim=1)
    positive = (labels[:, None] == all_labels) & ~itself
    return -(torch.where(positive, log_p, 0.0).sum(1) / positive.sum(1)).mean()


def lower_bound(expert_logits: Tensor, gate_logits: Tensor, q: Tensor, diagnosis: Tensor) -> Tensor:
    """Eq. 4 per subject: sum_k Q log p(y | x, c=k) - KL(Q || p(c | x)), the mean over subjects."""
    sign = 2 * diagnosis.to(expert_logits)[:, None] - 1
    experts = (q * F.logsigmoid(sign * expert_logits)).sum(1)
    divergence = (torch.xlogy(q, q) - q * F.log_softmax(gate_logits, dim=1)).sum(1)
    return (experts - divergence).mean()


def mixture_of_experts_logit(expert_logits: Tensor, gate_logits: Tensor) -> Tensor:
    """log-odds of p(y=1 | x) = sum_k p(y=1 | x, c=k) p(c=k | x) (paper, Sec. 3.4)."""
    gate = F.log_softmax(gate_logits, dim=1)
    patient = torch.logsumexp(gate + F.logsigmoid(expert_logits), dim=1)
    control = torch.logsumexp(gate + F.logsigmoid(-expert_logits), dim=1)
    return patient - control
