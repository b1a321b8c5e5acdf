"""Several processes that train one network: how they start, and what Fabric's DDP does not do.

Each process reads, augments and encodes its rows of every batch, and DDP averages the gradients. A loss is therefore
written so that its mean over processes is the loss of the whole batch (`phenogroups.losses`).
"""

import atexit
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from phenogroups.clustering.communicator import LOCAL, TIMEOUT, Communicator, lost_process_explained

READING_TIMEOUT = timedelta(days=1)  # while cohorts are read, which one machine may have to decode first
LEAST_ROWS = 2  # of a batch in each process: batch normalisation needs a deviation


@dataclass(frozen=True)
class _Launched:
    comm: Communicator = LOCAL
    devices: int = 1  # processes on each machine
    nodes: int = 1  # machines
    readers: Any = None  # the process group with the timeout for reading cohorts


_launched = _Launched()


def communicator() -> Communicator:
    """The communicator of the processes that train together; of one process unless `launch` started more."""
    return _launched.comm


def launch(devices: int | None = None, nodes: int | None = None, device: str = "auto") -> Communicator:
    """Start or join the processes that train together.

    Call it at the beginning of a script: the other processes on this machine run the same script. Under torchrun they
    are started already, and torchrun says how many there are.

    Parameters
    ----------
    devices
        Number of processes on each machine, by default 1.
    nodes
        Number of machines, by default 1.
    device
        Accelerator of Fabric: ``auto``, ``cpu``, ``gpu``, ``cuda`` or ``mps``.

    Returns
    -------
    Communicator
        `rank` is the number of this process, `world_size` the number of processes.

    Examples
    --------
    >>> from phenogroups import launch
    >>> processes = launch()
    >>> processes.rank, processes.world_size
    (0, 1)
    """
    global _launched
    require_device(device)
    if (devices is not None and devices < 1) or (nodes is not None and nodes < 1):
        raise ValueError(f"Expected at least one process on one machine. Received: {devices} on {nodes}.")
    if TorchElasticEnvironment.detect():
        here, total = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
        if (devices or here, nodes or total // here) != (here, total // here):
            raise ValueError(
                f"Expected as many processes as torchrun started, {here} on each of {total // here} machines. "
                f"Received: {devices or here} on each of {nodes or total // here}. Leave out the numbers."
            )
        devices, nodes = here, total // here
    devices, nodes = devices or 1, nodes or 1
    if devices * nodes > 1 and _launched.comm.world_size == 1:
        with lost_process_explained(devices * nodes):
            fabric = Fabric(accelerator=device, devices=devices, num_nodes=nodes, strategy=_strategy())
            fabric.launch()
            # threads of the process group that still run when the interpreter ends would abort the process
            atexit.register(dist.destroy_process_group)
            comm = Communicator(dist.get_rank(), dist.get_world_size(), fabric.device)
            _launched = _Launched(comm, devices, nodes, dist.new_group(timeout=READING_TIMEOUT))
    return _launched.comm


def require_device(device: str) -> None:
    """Raise where this machine has no such accelerator; Fabric raises errors of many kinds and lengths."""
    present = ["auto", "cpu"]
    present += ["gpu", "cuda"] if torch.cuda.is_available() else []
    present += ["gpu", "mps"] if torch.backends.mps.is_available() else []
    if device not in present:
        raise ValueError(
            f"Expected a device that this machine has: {', '.join(present)}. Received: {device!r}. Leave the device "
            "out, and the best one is used."
        )


def build_fabric(device: str, precision: Any, *, find_unused_parameters: bool = False) -> Fabric:
    """Fabric with device, precision and DDP; waits until all processes have read their cohorts."""
    require_device(device)
    if _launched.comm.world_size == 1:
        fabric = Fabric(accelerator=device, devices=1, precision=precision)
    else:
        with lost_process_explained(_launched.comm.world_size):
            dist.all_reduce(torch.zeros(1, device=_launched.comm.device), group=_launched.readers)
        fabric = Fabric(
            accelerator=device, devices=_launched.devices, num_nodes=_launched.nodes, precision=precision,
            strategy=_strategy(find_unused_parameters=find_unused_parameters),
        )  # fmt: skip
    fabric.launch()
    return fabric


def _strategy(**more: Any) -> DDPStrategy:
    return DDPStrategy(timeout=TIMEOUT, gradient_as_bucket_view=True, forward_sync_buffers=False, **more)


def on_device(module: nn.Module, device: str) -> nn.Module:
    """The module, moved to the accelerator of this name."""
    require_device(device)
    return Fabric(accelerator=device, devices=1).to_device(module)


def synchronise_batch_norm(network: nn.Module, comm: Communicator, device: torch.device) -> None:
    """On GPUs, normalise by the batch of all processes; torch has no such layer for CPUs."""
    if comm.world_size > 1 and device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(network)


@torch.no_grad()
def average_buffers(network: nn.Module, comm: Communicator) -> None:
    """Average the running statistics of batch normalisation, which each process updates by its own rows."""
    buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
    if comm.world_size == 1 or not buffers:
        return
    mean = comm.all_reduce(torch.cat([buffer.flatten() for buffer in buffers])) / comm.world_size
    for buffer, values in zip(buffers, mean.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.view_as(buffer))


def divided_batch_size(size: int, comm: Communicator) -> int:
    """The largest batch size, at most `size`, that all processes can share equally."""
    if comm.world_size > 1 and size < LEAST_ROWS * comm.world_size:
        raise ValueError(
            f"Expected at least {LEAST_ROWS} subjects of every batch for each of {comm.world_size} processes. "
            f"Received: batches of {size}. Start fewer processes."
        )
    return size // comm.world_size * comm.world_size
