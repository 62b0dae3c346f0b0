# SPDX-License-Identifier: Apache-2.0
"""From storage objects to core records."""

import pytest

from dovetail.core.model import LabelSelector, NodeTerm, Requirement, StorageClass, Volume, VolumeClaim
from dovetail.kube.objects import storage
from dovetail.kube.translate import volumes
from tests.kube.yaml_objects import wire

GIB = 2**30
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
NO_ZONE = tuple(
    Requirement(key, "DoesNotExist")
    for key in (ZONE, REGION, "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region")
)


def claim(metadata: str, spec: str) -> VolumeClaim:
    text = f"{{metadata: {{name: c, namespace: ml, {metadata}}}, spec: {{{spec}}}}}"
    return volumes.claim(wire(storage.PersistentVolumeClaim, text))


def volume(metadata: str, spec: str, phase: str = "Available") -> Volume:
    text = f"{{metadata: {{name: v, {metadata}}}, spec: {{{spec}}}, status: {{phase: {phase}}}}}"
    return volumes.volume(wire(storage.PersistentVolume, text))


def test_an_unbound_claim() -> None:
    found = claim(
        "annotations: {volume.kubernetes.io/selected-node: n1}",
        "storageClassName: fast, accessModes: [ReadWriteOnce, ReadOnlyMany], volumeMode: Block,"
        " resources: {requests: {storage: 10Gi}}, selector: {matchLabels: {tier: gold}}",
    )
    gold = LabelSelector((Requirement("tier", "In", ("gold",)),))
    modes = ("ReadOnlyMany", "ReadWriteOnce")
    assert found == VolumeClaim("ml", "c", "", "fast", 10 * GIB, modes, "n1", gold, "Block", deleting=False)


def test_a_claim_is_bound_when_the_controller_has_completed_it() -> None:
    done = "annotations: {pv.kubernetes.io/bind-completed: 'yes'}"
    bound = claim(done, "storageClassName: fast, volumeName: v1")
    assert (bound.volume, bound.storage_class) == ("v1", "fast")
    waits = claim("", "storageClassName: fast, volumeName: v1")
    assert (waits.volume, waits.storage_class) == ("", "")


def test_the_old_annotation_names_the_class() -> None:
    old = "annotations: {volume.beta.kubernetes.io/storage-class: slow}"
    assert claim(old, "storageClassName: fast").storage_class == "slow"
    assert volume(old, "storageClassName: fast").storage_class == "slow"


def test_sizes_that_cannot_be_read_fit_nothing() -> None:
    asks = claim("", "resources: {requests: {storage: much}}").request_bytes
    assert asks > volume("", "capacity: {storage: 1000Pi}").capacity_bytes
    assert volume("", "capacity: {storage: much}").capacity_bytes == 0


def test_a_claim_that_is_being_deleted() -> None:
    assert claim("deletionTimestamp: '2026-01-01T00:00:00Z'", "").deleting


def test_a_local_volume() -> None:
    node = "required: {nodeSelectorTerms: [{matchExpressions: [{key: host, operator: In, values: [n1]}]}]}"
    found = volume(
        "labels: {tier: gold}",
        "storageClassName: local, capacity: {storage: 1Ti}, accessModes: [ReadWriteOnce],"
        f" nodeAffinity: {{{node}}}, claimRef: {{namespace: ml, name: c}}, csi: {{driver: disk.csi}}",
    )
    here = (NodeTerm((Requirement("host", "In", ("n1",)),)),)
    assert found == Volume("v", "local", 1024 * GIB, ("ReadWriteOnce",), here, (("tier", "gold"),), "ml/c", "disk.csi")


@pytest.mark.parametrize("phase", ["Released", "Failed"])
def test_a_volume_that_is_used_up_cannot_be_picked(phase: str) -> None:
    found = volume("", "accessModes: [ReadWriteOnce], claimRef: {namespace: ml, name: c}", phase)
    assert (found.access_modes, found.available, found.claim) == ((), False, "")


def test_a_pending_volume_is_not_available() -> None:
    assert not volume("", "accessModes: [ReadWriteOnce]", "Pending").available


def test_zone_labels_narrow_where_a_volume_can_be_reached() -> None:
    beta = "labels: {failure-domain.beta.kubernetes.io/zone: a__b}"
    in_zone = Requirement(ZONE, "In", ("a", "b"))
    assert volume(beta, "").node_terms == (NodeTerm((in_zone,)), NodeTerm(NO_ZONE))
    host = Requirement("host", "In", ("n1",))
    required = "{nodeSelectorTerms: [{matchExpressions: [{key: host, operator: In, values: [n1]}]}, {}]}"
    narrowed = volume(beta, f"nodeAffinity: {{required: {required}}}").node_terms
    assert narrowed == (NodeTerm((host, in_zone)), NodeTerm((host, *NO_ZONE)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{metadata: {name: s}, provisioner: disk.csi}", StorageClass("s", False, True, "disk.csi")),
        ("{metadata: {name: s}, provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}",
         StorageClass("s", True, False, "")),
        ("{metadata: {name: s}, provisioner: p, allowedTopologies:"
         " [{matchLabelExpressions: [{key: zone, values: [a, b]}]}]}",
         StorageClass("s", False, True, "p", (NodeTerm((Requirement("zone", "In", ("a", "b")),)),))),
    ],
)  # fmt: skip
def test_storage_classes(text: str, expected: StorageClass) -> None:
    assert volumes.storage_class(wire(storage.StorageClass, text)) == expected
