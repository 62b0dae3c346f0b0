# SPDX-License-Identifier: Apache-2.0
"""Files are recognised by their content, and their hosts by the names of Kubernetes nodes."""

from __future__ import annotations

import json

import pytest

from benchmarks.fabric_import import network
from dovetail.topology.fabric import FabricError, FabricFinding, FabricPlacement, FabricReading
from dovetail.topology.node_list import listed_nodes
from dovetail.views.fabric import node_names, read_fabric

SAMPLES = {
    "ibnetdiscover": network(1).text(),
    "ufm": json.dumps(
        [
            {
                "source_guid": "9",
                "source_port": "1",
                "source_port_node_description": "n1 mlx5_0",
                "destination_guid": "a",
                "destination_port": "2",
                "destination_port_node_description": "leaf:1/1/1",
            }
        ]
    ),
    "topology.yaml": "---\n- topology: t\n  tree:\n    switches:\n      - switch: s\n        nodes: n[1-2]\n",
    "topology.conf": "# made by hand\nswitchname=s nodes=n[1-2]\n",
    "aws": '{\n  "Instances": [{"InstanceId": "i-1", "NetworkNodes": ["nn-1"]}]}',
    "gcp": '[{"id": "1", "name": "a", "resourceStatus": {"physicalHost": "/c/r/h"}}]',
    "oci": '{"data": {"items": [{"instance-id": "i", "network-block-id": "b"}]}}',
    "lldp": '{"host": "a", "lldp": {"interface": {"e1": {"chassis": {"leaf-1": {"id": {"value": "m"}}}}}}}',
    "node-labels": '{"apiVersion": "v1", "items": [{"metadata": {"name": "a", "labels": {"dovetail.dev/rack": "r"}}}]}',
    "csv": "# ours\nrack,node\na,n1\n",
}
NODES = json.dumps(
    {
        "kind": "List",
        "items": [
            {"metadata": {"name": "ip-10-0-0-1.ec2.internal"}, "spec": {"providerID": "aws:///us-west-2a/i-1"}},
            {"metadata": {"name": "gpu-1.example.com", "labels": {"kubernetes.io/hostname": "GPU-1"}}},
            {"metadata": {"name": "a.one"}},
            {"metadata": {"name": "a.two"}},
        ],
    }
)


@pytest.mark.parametrize("name", SAMPLES)
def test_content_and_name_of_a_format_agree(name: str) -> None:
    assert read_fabric(SAMPLES[name]) == read_fabric(SAMPLES[name], name)
    assert read_fabric(SAMPLES[name]).placements
    for other in SAMPLES.keys() - {name}:
        with pytest.raises(FabricError):
            read_fabric(SAMPLES[name], other)


@pytest.mark.parametrize("text", ["", "hello", "{}", "apiVersion: v1\nkind: Node\n", "name,rack\nn,a\n"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(FabricError, match="its format is not known"):
        read_fabric(text)


def test_yaml_that_is_broken_is_refused_with_its_line() -> None:
    with pytest.raises(FabricError, match=r"it is no YAML: .*line 4"):
        read_fabric("- topology: t\n  tree:\n   - {\n")


def test_hosts_become_nodes_and_others_are_left_out() -> None:
    hosts = ("i-1", "gpu-1", "a", "a.two", "ufm")
    findings = (
        FabricFinding("few-links", "", "ufm"),
        FabricFinding("few-links", "", "gpu-1"),
        FabricFinding("orphan", ""),
    )
    reading = FabricReading(tuple(FabricPlacement(host, ("x",)) for host in hosts), ("k",), findings)
    found = node_names(listed_nodes(NODES)).of(reading)
    assert [one.node for one in found.placements] == ["ip-10-0-0-1.ec2.internal", "gpu-1.example.com", "a.two"]
    assert found.findings == findings[1:]


def test_two_hosts_of_one_node_in_two_places_are_found() -> None:
    reading = FabricReading((FabricPlacement("gpu-1", ("x",)), FabricPlacement("gpu-1.example.com", ("y",))), ("k",))
    found = node_names(listed_nodes(NODES)).of(reading)
    assert [one.code for one in found.findings] == ["two-places"]


@pytest.mark.parametrize("text", ["", "[]", '{"items": [{}]}'])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(FabricError, match="kubectl get nodes -o json"):
        listed_nodes(text)
