# SPDX-License-Identifier: Apache-2.0
"""The shares of GPUs by MPS: the agent's request to the keeper, and the keeper's state.

Rules
- With n replicas a client has 100 / n per cent of the threads and 1 / n of the memory of a GPU.
- A GPU is refused, with the reason, if it is in MIG mode (each instance would need its own daemon) or cannot have so
  many clients. Source: NVIDIA, Multi-Process Service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dovetail.agent.config import Config
from dovetail.agent.machine.host import Gpu, Host

VOLTA = (7, 0)
MOST_CLIENTS, MOST_CLIENTS_BEFORE_VOLTA = 48, 16
"""Per GPU. Since Volta (compute capability 7.0) clients submit work themselves."""
SOCKET = "keeper.sock"
"""The keeper's socket in the folder of MPS."""


class MpsShare(Struct, frozen=True):
    """The GPUs of one resource's daemon. `limits` has by uuid, in the order of indices, the memory of a client in MiB;
    `percentage` is a client's part of the threads."""

    resource: str
    limits: dict[str, int]
    percentage: int

    def covers(self, other: MpsShare) -> bool:
        """Whether its daemon can also serve the clients of the other share."""
        same = (self.resource, self.percentage) == (other.resource, other.percentage)
        return same and other.limits.items() <= self.limits.items()


class MpsRequest(Struct, frozen=True):
    """The wanted shares. `id` changes with the shares, `turn` with every request."""

    id: str = ""
    turn: int = 0
    shares: tuple[MpsShare, ...] = ()


class MpsState(Struct, frozen=True):
    """The state for the request `id` at its `turn`: by resource and uuid why a GPU cannot be allocated now."""

    id: str = ""
    turn: int = 0
    problems: dict[str, dict[str, str]] = {}


Refused = dict[tuple[str, str], str]


def shares_of(host: Host, config: Config) -> tuple[tuple[MpsShare, ...], Refused]:
    """The shares of these GPUs by the configuration, and the refused ones by resource and uuid, with the reason."""
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
    """The most clients of an MPS server on this GPU; the smaller number if its compute capability is unknown."""
    return MOST_CLIENTS if gpu.compute is not None and gpu.compute >= VOLTA else MOST_CLIENTS_BEFORE_VOLTA


def refusal(gpu: Gpu, replicas: int) -> str:
    """Why a GPU cannot be shared by this many MPS clients, "" if it can."""
    if gpu.mig is not None:
        return f"GPU {gpu.index} is in MIG mode, where MPS is not supported: share its instances by timeSlicing"
    if replicas > (most := most_clients(gpu)):
        compute = ".".join(map(str, gpu.compute)) if gpu.compute else "unknown"
        return f"GPU {gpu.index} (compute capability {compute}) can have {most} MPS clients, not {replicas}"
    return ""


def by_resource(shares: Sequence[MpsShare]) -> Mapping[str, MpsShare]:
    return {share.resource: share for share in shares}
