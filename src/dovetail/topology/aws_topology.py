# SPDX-License-Identifier: Apache-2.0
"""Reader of the answer of EC2's DescribeInstanceTopology (`aws ec2 describe-instance-topology`), JSON.

`NetworkNodes` are three or four layers from the widest to the one that the instance is connected to. The node is the
instance's ID, until a list of Kubernetes nodes (their `providerID`) gives its name. Instances without network nodes,
whose types do not support the call, have no place."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.cloud_instances import reading_of
from dovetail.topology.fabric import FabricError, FabricReading


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
    instances = [(one.instance_id, tuple(one.network_nodes)) for one in answer.instances]
    why_none = "the call covers only some instance types, such as p5 and p6"
    return reading_of(instances, why_none, bool(answer.next_token))
