# SPDX-License-Identifier: Apache-2.0
"""What is shared by MPS, as the agent asks its keeper for it, and what the keeper answers.

Rules
- With n replicas a client has 100 / n per cent of the threads and 1 / n of the memory of a GPU.
- A GPU is refused, with the reason: one in MIG mode (a daemon of its own for each instance would be needed), and one
  that cannot have so many clients.
Source: NVIDIA, Multi-Process Service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dovetail.agent.config import Config
from dovetail.agent.machine.host import Gpu, Host

VOLTA = (7, 0)
MOST_CLIENTS, MOST_CLIENTS_BEFORE_VOLTA = 48, 16
"""Of one GPU. Volta is where clients began to submit work themselves (compute capability 7.0)."""
SOCKET = "keeper.sock"
"""In the folder of MPS: where the keeper listens."""


class MpsShare(Struct, frozen=True):
    """What one resource's daemon looks after: by uuid of a GPU, in the order of their indices, the memory in MiB that a
    client has of it; and the percentage of its threads."""

    resource: str
    limits: dict[str, int]
    percentage: int

    def covers(self, other: MpsShare) -> bool:
        """Whether its daemon can serve the clients of the other, too."""
        same = (self.resource, self.percentage) == (other.resource, other.percentage)
        return same and other.limits.items() <= self.limits.items()


class MpsRequest(Struct, frozen=True):
    """What is to be shared. `id` is another one for other shares, `turn` for each time that it is asked for."""

    id: str = ""
    turn: int = 0
    shares: tuple[MpsShare, ...] = ()


class MpsState(Struct, frozen=True):
    """What became of the ask `id` at its `turn`: why GPUs (by uuid) of a resource cannot be given out now."""

    id: str = ""
    turn: int = 0
    problems: dict[str, dict[str, str]] = {}


Refused = dict[tuple[str, str], str]


def shares_of(host: Host, config: Config) -> tuple[tuple[MpsShare, ...], Refused]:
    """What the configuration wants of these GPUs; and by resource and uuid what it cannot have, with the reason."""
    found, refused = [], {}
    for shared in config.sharing.values():
        if shared.strategy != "mps":
            continue
        limits = {}
        for gpu in host.gpus:
            if gpu.mig is not None and config.mig_strategy == "mixed":
                # Its instances are resources of their own.
                continue
            if reason := refusal(gpu, shared.replicas):
                refused[shared.renamed, gpu.uuid] = reason
            else:
                limits[gpu.uuid] = gpu.memory_mib // shared.replicas
        if limits:
            found.append(MpsShare(shared.renamed, limits, 100 // shared.replicas))
    return tuple(found), refused


def most_clients(gpu: Gpu) -> int:
    """How many clients an MPS server can have on this GPU; the smaller number where its capability is not known."""
    return MOST_CLIENTS if gpu.compute is not None and gpu.compute >= VOLTA else MOST_CLIENTS_BEFORE_VOLTA


def refusal(gpu: Gpu, replicas: int) -> str:
    """Why a GPU cannot be shared by MPS so often; "" where it can."""
    if gpu.mig is not None:
        return f"GPU {gpu.index} is in MIG mode, where MPS is not supported: share its instances by timeSlicing"
    if replicas > (most := most_clients(gpu)):
        compute = ".".join(map(str, gpu.compute)) if gpu.compute else "unknown"
        return f"GPU {gpu.index} (compute capability {compute}) can have {most} MPS clients, not {replicas}"
    return ""


def by_resource(shares: Sequence[MpsShare]) -> Mapping[str, MpsShare]:
    return {share.resource: share for share in shares}
