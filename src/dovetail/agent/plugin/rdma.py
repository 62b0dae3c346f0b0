# SPDX-License-Identifier: Apache-2.0
"""The RDMA devices (HCAs) of a host as shared resources, as the RDMA shared device plugin offers them.

Rules
- A resource has the ids 0 to rdmaHcaMax - 1. They only count pods: each container gets the character devices of all
  HCAs that the resource selects, with the permissions rwm, however many ids it requests.
- Without a selected HCA that has character devices there are no ids.
- The ids are unhealthy while no port of the selected HCAs is active. They have a NUMA node if all selected HCAs are on
  the same one. The shared device plugin does neither.
Source: Mellanox k8s-rdma-shared-dev-plugin, pkg/resources (server.go, device_selectors.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dovetail.agent.config import Config
from dovetail.agent.machine.host import Host
from dovetail.agent.machine.sysfs import Hca
from dovetail.agent.plugin.offers import RDMA, AdvertisedDevice, ResourceOffer

DEV = Path("/dev")
_VALUES: dict[str, Callable[[Hca], Iterable[str]]] = {
    "vendors": lambda hca: (hca.vendor,),
    "deviceIDs": lambda hca: (hca.device,),
    "drivers": lambda hca: (hca.driver,),
    "ifNames": lambda hca: hca.interfaces,
    "linkTypes": lambda hca: hca.link_types,
}


def rdma_offers(host: Host, config: Config, dev_on_host: Path = DEV) -> dict[str, ResourceOffer]:
    """The offers by resource. `dev_on_host` is the folder /dev as the container runtime sees it."""
    found = {}
    for resource in config.rdma:
        selected = [
            hca
            for hca in host.hcas
            if hca.device_nodes and all({*_VALUES[key](hca)} & {*values} for key, values in resource.selectors.items())
        ]
        places = {hca.numa for hca in selected}
        numa = min(places, key=str) if len(places) == 1 else None
        healthy = any(hca.active for hca in selected)
        ids = [str(number) for number in range(resource.most if selected else 0)]
        devices = {id: AdvertisedDevice(id, "", "", 0, "", "", numa, healthy) for id in ids}
        paths = (node for hca in selected for node in hca.device_nodes)
        nodes = {path: str(dev_on_host / Path(path).relative_to(DEV)) for path in paths}
        found[resource.name] = ResourceOffer(resource.name, RDMA, None, devices, nodes)
    return found
