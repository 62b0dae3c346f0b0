# SPDX-License-Identifier: Apache-2.0
"""Reader of Compute Engine's instances (`gcloud compute instances list --format json`, or the answer of the API's
`instances.list`), JSON.

Source: the reference of the Compute Engine API v1, `ResourceStatus` and `ResourceStatusPhysicalHostTopology`.

Rules
- The domains are `cluster`, `block` and `subblock` of `resourceStatus.physicalHostTopology`; the host is left out, as
  a host of GPUs has one instance.
- Instances with the older `physicalHost` alone (`/cluster/rack/host`) have the parts of it before the last.
- The node is the instance's name, in lower case, as GKE names nodes.
"""

from __future__ import annotations

from msgspec import Struct, field

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.cloud_instances import reading_of
from dovetail.topology.fabric import FabricError, FabricReading


class GcpHostTopology(Struct):
    cluster: str = ""
    block: str = ""
    subblock: str = ""


class GcpResourceStatus(Struct, rename="camel"):
    physical_host: str = ""
    physical_host_topology: GcpHostTopology = field(default_factory=GcpHostTopology)


class GcpInstance(Struct, rename="camel"):
    name: str
    resource_status: GcpResourceStatus = field(default_factory=GcpResourceStatus)


class GcpAnswer(Struct, rename="camel"):
    """`next_page_token` is there if further pages follow."""

    items: list[GcpInstance]
    next_page_token: str = ""


def read(text: str) -> FabricReading:
    """Raises FabricError."""
    try:
        answer: list[GcpInstance] | GcpAnswer
        answer = decode_json(text, list[GcpInstance]) if text.lstrip()[:1] == "[" else decode_json(text, GcpAnswer)
    except JsonError as error:
        raise FabricError(
            f"no list of instances: {error}: make it again with gcloud compute instances list --format json"
        ) from error
    found = answer if isinstance(answer, GcpAnswer) else GcpAnswer(answer)
    instances = [(one.name.lower(), _path(one.resource_status)) for one in found.items]
    why_none = "only some machine types have a physicalHostTopology, such as a3-megagpu and a4"
    return reading_of(instances, why_none, bool(found.next_page_token))


def _path(status: GcpResourceStatus) -> tuple[str, ...]:
    host = status.physical_host_topology
    path = tuple(filter(None, (host.cluster, host.block, host.subblock)))
    return path or tuple(filter(None, status.physical_host.split("/")))[:-1]
