# SPDX-License-Identifier: Apache-2.0
"""The definition of Fabric: the fields of the reference and of the structs, and what a real API server keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.core.fabric import FABRIC_NAME
from dovetail.kube.objects.fabric import Fabric
from dovetail.kube.translate.fabrics import fabric_speeds
from dovetail.topology.fabric_record import RecordedFabric
from tests.docs.pages import page
from tests.paths import ROOT
from tools.controlplane.plane import Plane, RequestFailed

DEFINITION = ROOT / "deploy/crds/fabric.yaml"
SCHEMA = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
PATH = "/apis/dovetail.dev/v1alpha1/fabrics"
Document = dict[str, Any]
(EXAMPLE,) = [yaml.safe_load(b.text) for b in page("docs/reference/fabric.md").blocks if b.language == "yaml"]
TIMES = {"measuredAt": "2030-01-01T00:00:00Z", "expiresAt": "2030-01-08T00:00:00Z"}
SLOW = {"name": "gpu-1", "measuredMBps": 1, "expectedMBps": 2, **TIMES}


def leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    if "properties" in schema:
        for name, below in schema["properties"].items():
            yield from leaves(below, f"{path}.{name}" if path else name)
    elif "items" in schema:
        yield from leaves(schema["items"], f"{path}[]")
    else:
        yield path


@pytest.mark.parametrize("section", ["spec", "status"])
def test_the_reference_has_every_field(section: str) -> None:
    rows = page("docs/reference/fabric.md").section(f"Fields of the {section}").rows("field")
    assert [row.code[0][0] for row in rows] == list(leaves(SCHEMA[section]))


def test_what_is_read_is_in_the_schema() -> None:
    for of, struct in (("spec", Fabric), ("status", Fabric), ("spec", RecordedFabric), ("status", RecordedFabric)):
        part = next(one.type for one in msgspec.structs.fields(struct) if one.name == of)
        fields = {field.encode_name for field in msgspec.structs.fields(part)}
        assert fields <= set(SCHEMA[of]["properties"])
    found = fabric_speeds(msgspec.convert(EXAMPLE | {"status": {"slow": [SLOW]}}, Fabric))
    assert [(one.mbps, one.latency_ns) for one in found.levels] == [(100000, 22000), (200000, 16000), (400000, 14000)]
    assert [one.name for one in found.slow] == ["gpu-1"]
    assert [(one.key, one.per_domain) for one in found.spares] == [("nvidia.com/gpu.clique", 2)]


@pytest.fixture(scope="module")
def defined(plane: Plane) -> Plane:
    plane.kubectl("apply", "--server-side", f"--filename={DEFINITION}")
    plane.kubectl("wait", "--for=condition=Established", "crd/fabrics.dovetail.dev", "--timeout=60s")
    return plane


@pytest.mark.plane
def test_a_real_server_keeps_spec_and_status_and_refuses_another_name(defined: Plane) -> None:
    head = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Fabric"}
    try:
        defined.apply(f"{PATH}/{FABRIC_NAME}", EXAMPLE)
        meta = {"metadata": {"name": FABRIC_NAME}}
        defined.apply(f"{PATH}/{FABRIC_NAME}/status", {**head, **meta, "status": {"slow": [SLOW]}})
        found = defined.get(f"{PATH}/{FABRIC_NAME}")
        assert [one["key"] for one in found["spec"]["levels"]] == [
            one.get("key", "") for one in EXAMPLE["spec"]["levels"]
        ]
        assert found["status"]["slow"] == [{"level": "", **SLOW}]
        assert found["spec"]["spares"] == EXAMPLE["spec"]["spares"]
        with pytest.raises(RequestFailed, match="must be cluster"):
            defined.apply(f"{PATH}/other", {**head, "metadata": {"name": "other"}})
        for wrong in ({"levels": [{"bandwidthMBps": 0}]}, {"levels": [{"key": "a"}, {"key": "a"}]}):
            with pytest.raises(RequestFailed):
                defined.apply(f"{PATH}/{FABRIC_NAME}", {**head, **meta, "spec": wrong})
        for key, amount in (("kubernetes.io/hostname", 1), ("a b", 1), ("", 1), ("rack", 0), ("rack", 1025)):
            with pytest.raises(RequestFailed):
                spec = {"spares": [{"key": key, "perDomain": amount}]}
                defined.apply(f"{PATH}/{FABRIC_NAME}", {**head, **meta, "spec": spec})
    finally:
        defined.kubectl("delete", "fabrics", "--all")
