# SPDX-License-Identifier: Apache-2.0
"""Reader of Oracle Cloud's hosts with their RDMA network (`oci compute compute-host list --all`, and the bare metal
hosts of a compute capacity topology), JSON.

Source: the models `ComputeHostSummary` and `ComputeBareMetalHost` of the Core Services API. The API writes names as
`networkBlockId`, and the `oci` command as `network-block-id`; a capacity topology has `compute` before them.

Rules
- The domains are the HPC island, the network block and the local block. A host may lack the outer ones.
- The node is the instance on the host, until a list of Kubernetes nodes (their `providerID`) gives its name. A host
  without an instance is left out.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.cloud_instances import reading_of
from dovetail.topology.fabric import FabricError, FabricReading

_LEVELS = ("hpcislandid", "networkblockid", "localblockid")


class OciItems(Struct):
    items: list[dict[str, Any]]


class OciAnswer(Struct):
    """What the `oci` command prints."""

    data: OciItems | list[dict[str, Any]]


def read(text: str) -> FabricReading:
    """Raises FabricError."""
    try:
        answer = decode_json(text, OciAnswer).data
    except JsonError as error:
        raise FabricError(
            f"no list of hosts: {error}: make it again with oci compute compute-host list --all"
        ) from error
    hosts = [
        {name.replace("-", "").lower().removeprefix("compute"): value for name, value in one.items()}
        for one in (answer.items if isinstance(answer, OciItems) else answer)
    ]
    instances = []
    for one in hosts:
        values = [one.get(name) for name in ("instanceid", *_LEVELS)]
        if any(value is not None and not isinstance(value, str) for value in values):
            raise FabricError(f"host {one.get('id')}: an ID is no text: make the list again")
        instance, *path = values
        if instance:
            instances.append((instance, tuple(filter(None, path))))
    return reading_of(instances, "the list has hosts of another kind, or none with an instance")
