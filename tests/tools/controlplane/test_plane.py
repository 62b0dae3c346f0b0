# SPDX-License-Identifier: Apache-2.0
"""What a plane promises to the tests that use it."""

import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.paths import ROOT
from tools.controlplane.binaries import KUBERNETES_VERSION
from tools.controlplane.plane import ComponentFailed, KubectlFailed, Plane, RequestFailed

pytestmark = pytest.mark.plane

RACK = {"topology": [{"key": "topology.kubernetes.io/rack"}]}
POD_GROUP = {
    "apiVersion": "scheduling.k8s.io/v1beta1",
    "kind": "PodGroup",
    "metadata": {"name": "gang"},
    "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "schedulingConstraints": RACK},
}


def pod(name: str, **spec: object) -> dict[str, object]:
    spec = {"containers": [{"name": "main", "image": "none"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def create(plane: Plane, thing: object, namespace: str) -> None:
    plane.kubectl("create", f"--namespace={namespace}", "--filename=-", input=json.dumps(thing))


def served(plane: Plane, group_version: str) -> set[str]:
    resources = json.loads(plane.kubectl("get", "--raw", f"/apis/{group_version}"))["resources"]
    return {resource["name"] for resource in resources}


@pytest.fixture(scope="module")
def namespace(plane: Plane) -> str:
    plane.kubectl("create", "namespace", "control-plane")
    plane.kubectl("wait", "--namespace=control-plane", "--for=create", "serviceaccount/default", "--timeout=60s")
    return "control-plane"


def test_it_is_ready_and_of_the_pinned_version(plane: Plane) -> None:
    assert plane.kubectl("get", "--raw", "/readyz") == "ok"
    version = json.loads(plane.kubectl("version", "--output=json"))
    assert version["serverVersion"]["gitVersion"] == version["clientVersion"]["gitVersion"] == KUBERNETES_VERSION


def test_requests_without_kubectl(plane: Plane) -> None:
    path = "/api/v1/namespaces/asked"
    assert plane.get(path) is None
    plane.request("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "asked"}})
    plane.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, "application/merge-patch+json")
    assert plane.get(path)["metadata"]["labels"]["a"] == "b"
    with pytest.raises(RequestFailed, match="already exists") as refused:
        plane.request("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "asked"}})
    assert refused.value.status == 409


def test_its_certificate_is_of_its_own_authority(plane: Plane) -> None:
    with urllib.request.urlopen(
        f"{plane.url}/readyz", context=ssl.create_default_context(cafile=plane.ca_file)
    ) as reply:
        assert reply.status == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{plane.url}/readyz", context=ssl.create_default_context())


def test_a_service_account_may_do_what_a_role_allows(plane: Plane, namespace: str) -> None:
    in_namespace = f"--namespace={namespace}"
    plane.kubectl("create", "serviceaccount", "reader", in_namespace)
    as_reader = f"--kubeconfig={plane.service_account_kubeconfig(namespace, 'reader')}"
    with pytest.raises(KubectlFailed, match=r'Forbidden.*"system:serviceaccount:control-plane:reader" cannot list'):
        plane.kubectl("get", "pods", in_namespace, as_reader)
    plane.kubectl("create", "role", "reader", in_namespace, "--verb=list", "--resource=pods")
    account = f"--serviceaccount={namespace}:reader"
    plane.kubectl("create", "rolebinding", "reader", in_namespace, "--role=reader", account)
    plane.kubectl("get", "pods", in_namespace, as_reader)
    with pytest.raises(KubectlFailed, match="Forbidden"):
        plane.kubectl("get", "pods", "--namespace=default", as_reader)


def test_a_client_certificate_carries_user_and_groups(plane: Plane) -> None:
    as_user = f"--kubeconfig={plane.kubeconfig_for('ann', ['ops', 'gpu'])}"
    user = json.loads(plane.kubectl("auth", "whoami", "--output=json", as_user))["status"]["userInfo"]
    assert user["username"] == "ann"
    assert set(user["groups"]) == {"ops", "gpu", "system:authenticated"}


def test_the_workload_api_is_served_and_its_fields_are_kept(plane: Plane, namespace: str) -> None:
    assert {"podgroups", "podgroups/status", "workloads"} <= served(plane, "scheduling.k8s.io/v1beta1")
    assert {"compositepodgroups", "compositepodgroups/status"} <= served(plane, "scheduling.k8s.io/v1alpha3")
    create(plane, POD_GROUP, namespace)
    create(plane, pod("member", schedulingGroup={"podGroupName": "gang"}), namespace)
    read = ["get", f"--namespace={namespace}", "--output=json"]
    assert json.loads(plane.kubectl(*read, "podgroup", "gang"))["spec"]["schedulingConstraints"] == RACK
    assert json.loads(plane.kubectl(*read, "pod", "member"))["spec"]["schedulingGroup"] == {"podGroupName": "gang"}


def test_a_node_without_a_kubelet_stays_schedulable_and_the_stock_scheduler_uses_it(
    plane: Plane, namespace: str
) -> None:
    """By a resource of its own: other tests have left nodes here."""
    device = "control-plane.example/gpu"
    resources = {"cpu": "8", "memory": "32Gi", "pods": "110", device: "8"}
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    create(plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fake"}, "status": status}, "default")
    assert plane.kubectl("get", "node", "fake", "--output=jsonpath={.spec.taints}") == ""
    limits = {"limits": {device: "8"}}
    create(plane, pod("bound", containers=[{"name": "main", "image": "none", "resources": limits}]), namespace)
    plane.start_scheduler()
    try:
        plane.kubectl("wait", "pod/bound", f"--namespace={namespace}", "--for=condition=PodScheduled", "--timeout=60s")
    finally:
        plane.stop_scheduler()
    bound = plane.get(f"/api/v1/namespaces/{namespace}/pods/bound")
    assert bound["spec"]["nodeName"] == "fake"
    for left in (f"/api/v1/namespaces/{namespace}/pods/bound?gracePeriodSeconds=0", "/api/v1/nodes/fake"):
        plane.request("DELETE", left)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane without the workload API and without controllers, which writes an audit log."""
    audit_log = tmp_path_factory.mktemp("audit") / "audit.log"
    with Plane(features=False, controllers=False, audit_log=audit_log) as plane:
        plane.kubectl("create", "namespace", "fresh")
        create(plane, pod("alone", schedulingGroup={"podGroupName": "gang"}), "fresh")
        yield plane


def test_a_plain_cluster_without_controllers(plain: Plane) -> None:
    """It does not serve the workload API, and takes Pods although nothing makes ServiceAccounts."""
    assert set(plain.pids) == {"etcd", "kube-apiserver"}
    with pytest.raises(KubectlFailed, match="NotFound"):
        served(plain, "scheduling.k8s.io/v1beta1")
    group = plain.kubectl("get", "pod", "alone", "--namespace=fresh", "--output=jsonpath={.spec.schedulingGroup}")
    assert group == ""


def test_the_api_server_can_go_away_and_come_back(plain: Plane) -> None:
    """With its data, and here with the workload API."""
    url, pids = plain.url, plain.pids
    plain.stop_apiserver()
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(address)
    plain.options = structs.replace(plain.options, features=True)
    plain.restart_apiserver()
    assert plain.url == url
    assert plain.pids["etcd"] == pids["etcd"] and plain.pids["kube-apiserver"] != pids["kube-apiserver"]
    assert plain.kubectl("get", "pod", "--namespace=fresh", "--output=name") == "pod/alone\n"
    create(plain, POD_GROUP, "fresh")
    # Without controllers nothing would ever take a finalizer off again.
    plain.kubectl("delete", "podgroup", "gang", "--namespace=fresh", "--timeout=60s")
    assert plain.options.audit_log
    records = [json.loads(line) for line in plain.options.audit_log.read_text().splitlines()]

    def verbs(name: str) -> list[str]:
        return [record["verb"] for record in records if record["objectRef"].get("name") == name]

    # The log goes on after the restart.
    assert (verbs("alone"), verbs("gang")) == (["create"], ["create", "delete"])


def test_a_component_that_fails_shows_the_end_of_its_log(plane_factory: Callable[..., Plane]) -> None:
    with pytest.raises(ComponentFailed, match=r"kube-apiserver ended with status 1.*\n.*unknown flag: --no-such-flag"):
        plane_factory(extra_flags={"kube-apiserver": ["--no-such-flag"]})


def test_nothing_outlives_a_process_that_is_killed() -> None:
    # While it starts: all processes are there by then, and etcd has its files. These may end by themselves without
    # files: one more would not.
    program = (
        "import json, signal, time; from pathlib import Path; from threading import Thread\n"
        "from tools.controlplane.plane import Plane\n"
        "plane = Plane(controllers=False)\n"
        "starting = Thread(target=plane.start, daemon=True)\n"
        "starting.start()\n"
        "while starting.is_alive() and 'kube-apiserver' not in plane.pids: time.sleep(0.01)\n"
        "while starting.is_alive() and not list(plane.work_dir.glob('etcd/member/snap/db')): time.sleep(0.01)\n"
        "plane._children.start('sleep', ['sleep', '300'], Path('/dev/null'))\n"
        "print(json.dumps([plane.pids, str(plane.work_dir)]), flush=True)\n"
        "signal.pause()"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout
        pids, work_dir = json.loads(owner.stdout.readline())
        handles = [os.pidfd_open(pid) for pid in pids.values()]
        owner.send_signal(signal.SIGKILL)
    for handle in handles:
        assert select.select([handle], [], [], 20)[0], "a child is still running"
        os.close(handle)
    assert not Path(work_dir).exists()
