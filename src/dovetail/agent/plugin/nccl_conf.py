# SPDX-License-Identifier: Apache-2.0
"""Which NICs NCCL uses for the GPUs of a container, as the file /etc/nccl.conf.

Rules
- NCCL reads variables of the environment first, and of this file what the environment does not set: so those of the
  pod and of its image stay in force. A file of the image at this path is hidden, which is why the configuration has to
  ask for it.
- The NICs are those with RDMA, an active port and the highest rate on the node that are nearest to one of the GPUs.
  Others, such as the one for management, are left out. Where a rate is not known, nothing is written.
- The topology of the machine is not written (NCCL_TOPO_FILE): clouds bring files of their own for it.
- The name of a file is made of its text: that of a running container never changes.

Source: NCCL 2.27, src/misc/param.cc (setEnvFile), transport/net_ib.cc (NCCL_IB_HCA).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

from dovetail.agent.cdi import Edits, Mount
from dovetail.agent.machine.host import Host, HostNic
from dovetail.agent.machine.sysfs import Hca
from dovetail.core.devices.layout import SYS, UNKNOWN

log = logging.getLogger(__name__)

CONF = "/etc/nccl.conf"
_HEAD = "# The RDMA NICs that are nearest to the GPUs of this container, by dovetail agent"


def text_for(host: Host, uuids: Sequence[str]) -> str:
    """The file for a container with these GPUs; "" where there is nothing to state."""
    gpus = [at for at, gpu in enumerate(host.gpus) if gpu.uuid in uuids]
    near = sorted({nic.name for gpu in gpus for nic in nearest(host, gpu)})
    return f"{_HEAD}\nNCCL_IB_HCA=={','.join(near)}\n" if near else ""


class NcclFiles:
    """The files in `folder`, which has the same path on the host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def edits(self, host: Host, uuids: Sequence[str]) -> Edits:
        """The mount of the file, none where there is nothing to state, or the file cannot be written."""
        text = text_for(host, uuids)
        if not text:
            return Edits()
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.conf"
        try:
            if not path.exists():
                self._write(path, text)
        except OSError as error:
            log.warning("containers get no %s: %s", CONF, error)
            return Edits()
        return Edits(mounts=(Mount(str(path), CONF),))

    def _write(self, path: Path, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)


def nearest(host: Host, gpu: int) -> list[HostNic]:
    """The NICs for data that are nearest to the GPU at this place; none where a rate is not known."""
    names = {hca.name for hca in data_nics(host)}
    fast = [nic for nic in host.nics or () if nic.rdma and nic.name in names]
    levels = [SYS + 1 if nic.levels[gpu] == UNKNOWN else nic.levels[gpu] for nic in fast]
    return [nic for nic, level in zip(fast, levels, strict=True) if level == min(levels)]


def data_nics(host: Host) -> list[Hca]:
    """The HCAs with an active port and the highest rate on the node; none where a rate is not known."""
    active = {hca.name: hca for hca in host.hcas if hca.active}
    nics = [nic for nic in host.nics or () if nic.rdma and nic.name in active]
    fastest = max((nic.speed_mbps for nic in nics), default=0)
    if not all(nic.speed_mbps for nic in nics):
        return []
    return [active[nic.name] for nic in nics if nic.speed_mbps == fastest]
