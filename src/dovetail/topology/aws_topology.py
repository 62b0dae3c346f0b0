# SPDX-License-Identifier: Apache-2.0
"""Reader of the answer of EC2's DescribeInstanceTopology (`aws ec2 describe-instance-topology`), JSON.

`NetworkNodes` are three or four layers from the widest to the one that the instance is connected to. The node is the
instance's ID, until a list of Kubernetes nodes (their `providerID`) gives its name. Instances without network nodes,
whose types do not support the call, have no place."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.fabric import (
    MOST_LEVELS,
    FabricError,
    FabricFinding,
    FabricPlacement,
    FabricReading,
    one_place_each,
    switch_keys,
)


class AwsInstance(Struct, rename="pascal"):
    instance_id: str
    network_nodes: list[str] = []


class AwsAnswer(Struct, rename="pascal"):
    """`next_token` is there if further pages follow."""

    instances: list[AwsInstance]
    next_token: str | None = None


def read(text: str) -> FabricReading:
    """Raises FabricError."""
    try:
        answer = decode_json(text, AwsAnswer)
    except JsonError as error:
        raise FabricError(
            f"no answer of describe-instance-topology: {error}: make it again with --output json"
        ) from error
    findings = []
    if answer.next_token:
        findings.append(FabricFinding("cut-file", "the answer has a NextToken: its further pages are missing"))
    for one in answer.instances:
        if not one.network_nodes:
            findings.append(FabricFinding("orphan", f"{one.instance_id} has no network nodes", one.instance_id))
        if len(one.network_nodes) > MOST_LEVELS:
            raise FabricError(f"{one.instance_id} has more than {MOST_LEVELS} network nodes: it is no answer of EC2")
    placements, twice = one_place_each(
        [FabricPlacement(one.instance_id, tuple(one.network_nodes)) for one in answer.instances if one.network_nodes]
    )
    if not placements:
        raise FabricError("no instance has network nodes: the call covers only some instance types, such as p5 and p6")
    levels = max(len(one.path) for one in placements)
    return FabricReading(placements, switch_keys(levels), (*findings, *twice))
