# SPDX-License-Identifier: Apache-2.0
"""What a pod of an endpoint becomes on the host: what an agent writes reaches no further than its own containers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agentplanes import fields, names
from dovetail.agentplanes.fields import CONTAINER_FIELDS, POD_FIELDS, Treatment
from dovetail.agentplanes.host_pod import HostPodPlan, NotCarried, host_pod, with_lease
from dovetail.apiserver.objects import Object
from tests.agentplanes.builders import TARGET, pod, with_container


def carried(found: Object) -> Object:
    plan = host_pod(found, TARGET)
    assert isinstance(plan, HostPodPlan), plan
    return plan.document


def refused(found: Object) -> str:
    plan = host_pod(found, TARGET)
    assert isinstance(plan, NotCarried), plan
    return plan.message


def test_a_plain_pod_is_restricted_on_the_host() -> None:
    found = carried(pod("train", 2))
    assert found["metadata"]["namespace"] == "agent-tuner"
    assert found["metadata"]["labels"] == {names.PLANE_UID: "plane-uid", names.POD_UID: "uid-train"}
    assert found["metadata"]["annotations"] == {names.POD: "default/train"}
    spec = found["spec"]
    assert spec["schedulerName"] == "dovetail" and spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True,
    }  # fmt: skip
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert not {"nodeName", "serviceAccountName", "priority", "priorityClassName", "volumes"} & spec.keys()


def test_names_are_of_one_pod_and_short() -> None:
    found = {names.host_name("plane", name, uid) for name in ("a", "A.b", "x" * 253) for uid in ("u", "v", "w")}
    assert len(found) == 9
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", one) for one in found)
    assert names.host_name("plane", "a", "u") != names.host_name("other", "a", "u")


@given(st.text(max_size=300), st.text(max_size=40))
def test_any_name_becomes_one_that_a_host_accepts(name: str, uid: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", names.host_name("plane", name, uid))


def test_the_lease_is_named_with_its_fence() -> None:
    plan = host_pod(pod("train", 2), TARGET)
    assert isinstance(plan, HostPodPlan)
    metadata = with_lease(plan, "train-1", 7, "gang")["metadata"]
    assert metadata["annotations"]["dovetail.dev/lease"] == "train-1"
    assert metadata["annotations"]["dovetail.dev/lease-fence"] == "7"
    assert metadata["labels"][names.GANG] == "gang" and metadata["name"] == plan.document["metadata"]["name"]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"hostPID": True}, "spec.hostPID"),
        ({"hostIPC": True}, "spec.hostIPC"),
        ({"nodeName": "gpu-1"}, "spec.nodeName"),
        ({"runtimeClassName": "kata"}, "spec.runtimeClassName"),
        ({"priorityClassName": "system-node-critical"}, "spec.priorityClassName"),
        ({"imagePullSecrets": [{"name": "others"}]}, "spec.imagePullSecrets"),
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        ({"overhead": {"cpu": "1"}}, "spec.overhead"),
        ({"readinessGates": [{"conditionType": "x"}]}, "spec.readinessGates"),
        ({"somethingNew": {"of": "a later release"}}, "spec.somethingNew"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, "secret"),
        ({"volumes": [{"name": "v", "projected": {"sources": []}}]}, "projected"),
        ({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"volumes": [{"name": "v"}]}, "no source"),
        ({"nodeSelector": {"kubernetes.io/hostname": "gpu-1"}}, "kubernetes.io/hostname"),
        ({"securityContext": {"runAsUser": 0}}, "runAsUser"),
        ({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}}, "sysctls"),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "seLinuxOptions"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "seccompProfile"),
        ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "appArmorProfile"),
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"x": 1}}}},
            "spec.affinity.nodeAffinity",
        ),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "topologySpreadConstraints"),
    ],
)
def test_what_reaches_beyond_the_pod_is_refused_by_its_name(spec: Object, named: str) -> None:
    assert named in refused(pod(**spec))


@pytest.mark.parametrize(
    ("container", "named"),
    [
        ({"securityContext": {"privileged": True}}, "privileged"),
        ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "capabilities.add"),
        ({"securityContext": {"procMount": "Unmasked"}}, "procMount"),
        ({"securityContext": {"runAsUser": 0}}, "runAsUser"),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, "envFrom"),
        ({"envFrom": [{"configMapRef": {"name": "c"}, "secretRef": {"name": "s"}}]}, "envFrom"),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, "secretKeyRef"),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.other"}}}]}, "spec.other"),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "NVIDIA_VISIBLE_DEVICES"),
        ({"ports": [{"containerPort": 80, "hostPort": 80}]}, "hostPort"),
        ({"resources": {"limits": {"example.com/device": "1"}}}, "example.com/device"),
        ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims"),
        ({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}, "volumeDevices"),
        ({"volumeMounts": [{"name": "v", "mountPropagation": "Bidirectional"}]}, "mountPropagation"),
        ({"livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}}, "livenessProbe"),
        ({"lifecycle": {"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 1}}}}, "lifecycle"),
        ({"somethingNew": True}, "somethingNew"),
    ],
)
def test_containers_too(container: Object, named: str) -> None:
    assert named in refused(with_container(pod(), **container))
    whole = with_container(pod(), **container)["spec"]["containers"]
    assert named in refused(pod(initContainers=whole))


def test_what_only_widens_is_dropped_and_named() -> None:
    found = pod(
        serviceAccountName="admin", subdomain="x", tolerations=[{"operator": "Exists"}], priority=1000,
        affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}},
    )  # fmt: skip
    plan = host_pod(found, TARGET)
    assert isinstance(plan, HostPodPlan)
    assert set(plan.without) == {"spec.serviceAccountName", "spec.subdomain", "spec.affinity"}
    assert not {"serviceAccountName", "tolerations", "affinity", "priority"} & plan.document["spec"].keys()


def test_labels_stay_and_of_annotations_only_those_of_the_table_go() -> None:
    found = pod(annotations={
        "dovetail.dev/queue": "others", "dovetail.dev/checkpoint-interval": "5m", "cdi.k8s.io/x": "nvidia.com/gpu=all",
    })  # fmt: skip
    found["metadata"]["labels"] = {"app": "database", names.PLANE_UID: "another"}
    metadata = carried(found)["metadata"]
    assert metadata["labels"][names.PLANE_UID] == "plane-uid" and "app" not in metadata["labels"]
    assert metadata["annotations"].keys() == {names.POD, "dovetail.dev/checkpoint-interval"}


def test_a_container_without_gpus_sees_none_whatever_its_image_asks_for() -> None:
    assert carried(pod())["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert "env" not in carried(pod(gpus=1))["spec"]["containers"][0]


def test_variables_show_the_metadata_of_the_endpoint_as_literal_text() -> None:
    def of(path: str) -> Any:
        variable = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        annotations = {"k": "$(PATH)", "escaped": "$$(PATH) $$"}
        found = with_container(pod("mine", 1, annotations=annotations), env=[variable])
        return carried(found)["spec"]["containers"][0]["env"][0]

    assert of("metadata.name") == {"name": "A", "value": "mine"}
    assert of("metadata.namespace")["value"] == "default"
    assert of("metadata.annotations['k']")["value"] == "$$(PATH)"
    assert of("metadata.annotations['escaped']")["value"] == "$$$$(PATH) $$$$"
    assert of("status.podIP")["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


MAPS = {("default", "c"): {"data": {"run.sh": "echo $(A)\n", "LEVEL": "3"}, "binaryData": {"model": "AAAA"}}}


def with_maps(found: Object) -> Object:
    plan = host_pod(found, TARGET, MAPS)
    assert isinstance(plan, HostPodPlan), plan
    return plan.document


def test_files_of_a_config_map_need_no_object_on_the_host() -> None:
    items = [{"key": "run.sh", "path": "bin/run.sh", "mode": 0o755}]
    document = with_maps(pod(volumes=[{"name": "v", "configMap": {"name": "c", "items": items, "defaultMode": 0o644}}]))
    assert document["metadata"]["annotations"][f"{names.FILE}0"] == "echo $(A)\n"
    path = f"metadata.annotations['{names.FILE}0']"
    shown = {"path": "bin/run.sh", "fieldRef": {"fieldPath": path}, "mode": 0o755}
    assert document["spec"]["volumes"] == [{"name": "v", "downwardAPI": {"items": [shown], "defaultMode": 0o644}}]


def test_variables_of_a_config_map_are_literal_text() -> None:
    variable = {"name": "SCRIPT", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "run.sh"}}}
    optional = {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "other", "key": "x", "optional": True}}}
    source = {"prefix": "M_", "configMapRef": {"name": "c"}}
    found = with_container(pod(gpus=1), env=[variable, optional], envFrom=[source])
    assert with_maps(found)["spec"]["containers"][0]["env"] == [
        {"name": "M_LEVEL", "value": "3"}, {"name": "M_run.sh", "value": "echo $$(A)\n"},
        {"name": "SCRIPT", "value": "echo $$(A)\n"},
    ]  # fmt: skip


def test_a_config_map_gives_no_devices() -> None:
    maps = {("default", "c"): {"data": {"VISIBLE_DEVICES": "all"}}}
    found = with_container(pod(), envFrom=[{"prefix": "NVIDIA_", "configMapRef": {"name": "c"}}])
    plan = host_pod(found, TARGET, maps)
    assert isinstance(plan, NotCarried) and "NVIDIA_VISIBLE_DEVICES" in plan.message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"name": "other"}, "'other' is not there"),
        ({"name": "c", "items": [{"key": "x", "path": "x"}]}, "no key 'x'"),
        ({"name": "c", "items": [{"key": "model", "path": "x"}]}, "binary data"),
        ({"name": "c"}, "binary data"),
    ],
)
def test_what_a_config_map_lacks_is_shown(source: Object, message: str) -> None:
    plan = host_pod(pod(volumes=[{"name": "v", "configMap": source}]), TARGET, MAPS)
    assert isinstance(plan, NotCarried) and message in plan.message


def test_maps_of_another_namespace_are_not_there() -> None:
    maps = {("other", "c"): MAPS["default", "c"]}
    plan = host_pod(pod(volumes=[{"name": "v", "configMap": {"name": "c"}}]), TARGET, maps)
    assert isinstance(plan, NotCarried) and plan.reason == "ConfigMapMissing"


def test_the_grace_period_is_bounded_by_that_of_the_plane() -> None:
    assert carried(pod(terminationGracePeriodSeconds=10**9))["spec"]["terminationGracePeriodSeconds"] == 120
    assert carried(pod(terminationGracePeriodSeconds=-5))["spec"]["terminationGracePeriodSeconds"] == 0


def test_a_long_pod_is_refused() -> None:
    assert "at most 65536" in refused(with_container(pod(), args=["x" * 70_000]))


def test_shares_of_a_gpu_are_refused() -> None:
    assert "gpu-fraction" in refused(pod(gpus=1, annotations={"dovetail.dev/gpu-fraction": "0.5"}))


@pytest.mark.parametrize("table", [POD_FIELDS, CONTAINER_FIELDS])
def test_the_tables_are_sorted(table: dict[str, Treatment]) -> None:
    assert list(table) == sorted(table)


LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "gpu-1", "/", "all", "c", "LEVEL"])
KEYS = st.sampled_from([
    *POD_FIELDS, *CONTAINER_FIELDS, *fields.POD_SECURITY_FIELDS, *fields.CONTAINER_SECURITY_FIELDS, "hostPath",
    "secret", "emptyDir", "configMap", "configMapRef", "configMapKeyRef", "key", "name", "items", "path",
    "httpGet", "host", "valueFrom", "fieldRef", "fieldPath", "limits", "requests", "add", "value",
])  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*POD_FIELDS, "unknown"]), VALUES, max_size=5),
       st.dictionaries(st.sampled_from([*CONTAINER_FIELDS, "unknown"]), VALUES, max_size=5))  # fmt: skip
def test_whatever_is_written_nothing_forbidden_is_on_the_host(spec: Object, container: Object) -> None:
    made = pod("x")
    made["spec"] |= spec | {"containers": [{"name": "m", "image": "i"} | container]}
    plan = host_pod(made, TARGET, MAPS)
    if isinstance(plan, NotCarried):
        assert plan.message
        return
    found = plan.document["spec"]
    forbidden = [name for name, treatment in POD_FIELDS.items() if treatment in (Treatment.REFUSED, Treatment.DROPPED)]
    assert not set(forbidden) & found.keys() and found.keys() <= POD_FIELDS.keys()
    assert all(volume.keys() <= {"name", "emptyDir", "downwardAPI"} for volume in found.get("volumes", ()))
    for shown in [
        item for volume in found.get("volumes", ()) for item in volume.get("downwardAPI", {}).get("items", ())
    ]:
        assert shown["fieldRef"]["fieldPath"].startswith(f"metadata.annotations['{names.FILE}")
    assert found["automountServiceAccountToken"] is False and found["securityContext"]["runAsNonRoot"] is True
    for one in [*found["containers"], *found.get("initContainers", ())]:
        assert one.keys() <= CONTAINER_FIELDS.keys() - {"envFrom", "volumeDevices"}
        assert not any("valueFrom" in variable for variable in one.get("env", ()))
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert one["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in one["securityContext"] and one["securityContext"].get("runAsUser") != 0
