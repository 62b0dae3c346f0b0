# SPDX-License-Identifier: Apache-2.0
"""Rules about the network of GPU pods, and about the variables of NCCL.

- A name that begins with NCCL_ is reported if no release of NCCL reads it, nor a known plugin (SHARP, UCX, those of
  clouds) or PyTorch. `nccl.json` has the names, with their source, licence and date. Without a similar name that NCCL
  reads it is a guess: a plugin of the user's own may read it.
- `NCCL_*_DISABLE` is reported if it disables what the pod needs: P2P and shared memory in a container with several
  GPUs, InfiniBand in a container that requests RDMA.
- An interface is reported if the pod can have only eth0: the pod network, without a sign of another one.
- Host networking is reported only without a likely reason: more than one GPU, another device, privileges on the node,
  or variables of a communication library.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from functools import cache

from dovetail.advice.lint.edits import put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, amounts_of, cards_of, env_of, is_gpu
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import gpu_nodes_for
from dovetail.core.devices import products

_NEAR = 0.88
_SHORT_WORDS = {"TOPOLOGY": "TOPO", "INTERFACE": "IFNAME", "INTERFACES": "IFNAME", "DEVICE": "HCA", "DEVICES": "HCA"}
"""Words that users write, and NCCL's own."""
FOREIGN = (
    "NCCL_SHARP_", "NCCL_UCX_", "NCCL_IBEXT_", "NCCL_PLUGIN_", "NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHIMNET_",
    "NCCL_TESTS_", "NCCL_OFI_", "NCCL_TUNER_CONFIG_", "NCCL_ASYNC_", "NCCL_BLOCKING_", "NCCL_DESYNC_", "NCCL_TIMEOUT",
    "NCCL_TRACE_", "NCCL_DUMP_ON_", "NCCL_ENABLE_", "NCCL_LIB", "NCCL_INCLUDE", "NCCL_ROOT", "NCCL_HOME", "NCCL_PATH",
    "NCCL_VERSION", "NCCL_SO_",
)  # fmt: skip
"""Prefixes of names that other programs read: plugins of NCCL, PyTorch, tests and builds."""
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_OF_NETWORK = ("NCCL_", "GLOO_")
_POD_INTERFACES = ("eth0", "lo")
_OWN_NETWORK = ("network", "cni", "interface")
_PLAIN = ("cpu", "memory", "ephemeral-storage", "hugepages-", "pods")
_RDMA = ("rdma", "infiniband", "hca", "roce", "mlnx", "hostdev", "sriov")
_LIBRARIES = ("NCCL_", "GLOO_", "UCX_", "NVSHMEM_", "FI_", "OMPI_", "MASTER_ADDR")
_PRODUCT = "nvidia.com/gpu.product"
_DNS = "ClusterFirstWithHostNet"


@cache
def variables() -> tuple[str, ...]:
    """The sorted names that any release of NCCL reads."""
    # Imported here: most manifests have no variable of NCCL.
    from importlib.resources import files

    table = json.loads((files("dovetail.advice.lint") / "nccl.json").read_text())
    return tuple(sorted({*table["names"], *table["later"], *table["before"]}))


def nearest_variable(name: str) -> str:
    """The variable of NCCL that was probably meant; "" if none is similar."""
    known = variables()
    turned = {"DISABLE": "ENABLE", "ENABLE": "DISABLE"}
    other = "_".join(turned.get(word, word) for word in name.split("_"))
    if other in known:
        return other
    words = sorted(name.split("_"))
    same_words = [one for one in known if sorted(one.split("_")) == words]
    found = same_words or difflib.get_close_matches(name, known, 1, _NEAR)
    if not found:
        meant = [_SHORT_WORDS.get(word, word) for word in name.split("_")]
        found = sorted((one for one in known if _holds(one.split("_"), meant)), key=len)
    return found[0] if found else ""


def _holds(words: Sequence[str], some: Sequence[str]) -> bool:
    """Whether the words have all of `some`, in the same order, and one more at most."""
    left = iter(words)
    return len(words) <= len(some) + 1 and all(word in left for word in some)


def _unknown_variable(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.all_containers if pod.uses_gpu else ():
        for name, entry in env_of(container):
            if name.startswith("NCCL_") and not name.startswith(FOREIGN) and name not in variables():
                near = nearest_variable(name)
                meant = f"did you mean {near}?" if near else "remove it, unless a plugin of your own reads it"
                yield RuleMatch(entry.at("name"), f"NCCL has no variable {name}: {meant}", guess=not near)


def _network_variables(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    for container in pod.containers if pod.uses_gpu else ():
        gpus = cards_of(container)
        for name, entry in env_of(container):
            if not name.startswith(_OF_NETWORK):
                continue
            value = entry.at("value")
            if name in _INTERFACES and value.text and not _has_interface(name, value.text) and _only_eth0(pod):
                message = f"{name} is {value.text}: a pod without hostNetwork has eth0; write eth0, or remove it"
                yield RuleMatch(value, message)
            elif not _is_on(value):
                continue
            elif name == "NCCL_P2P_DISABLE" and gpus > 1:
                links = _nvlink(pod, facts)
                if links is not False:
                    message = f"{name} disables peer-to-peer access between {gpus} GPUs: remove it"
                    yield RuleMatch(entry, message, guess=links is None)
            elif name == "NCCL_SHM_DISABLE" and gpus > 1:
                message = f"{name} moves the traffic of {gpus} GPUs to the network: remove it"
                yield RuleMatch(entry, f"{message}, and mount a memory volume at /dev/shm")
            elif name == "NCCL_IB_DISABLE":
                for device in sorted(_others(container)):
                    if any(word in device.lower() for word in _RDMA):
                        yield RuleMatch(entry, f"{name} disables {device}, which the container requests: remove it")


def _is_on(value: Field) -> bool:
    return value.text.strip().lstrip("-").isdecimal() and int(value.text) != 0


def _has_interface(name: str, value: str) -> bool:
    """Whether the value selects eth0 or lo. NCCL reads a list of prefixes; after `=` exact names, after `^` exclusions.
    Gloo reads exact names only."""
    if "$(" in value or value.startswith("^"):
        return True
    exact = value.startswith("=") or not name.startswith("NCCL_")
    entries = [entry.strip().partition(":")[0] for entry in value.removeprefix("=").split(",")]
    return any(one == entry if exact else one.startswith(entry) for entry in entries for one in _POD_INTERFACES)


def _only_eth0(pod: Template) -> bool:
    annotations = (key for meta in (pod.meta, pod.whole.at("metadata")) for key, _ in meta.at("annotations").entries())
    return not (
        pod.spec.at("hostNetwork").value
        or any(word in key.lower() for key in annotations for word in _OWN_NETWORK)
        or any(_others(container) for container in pod.containers)
        or any(pod.spec.at("resourceClaims").each())
    )


def _others(container: Field) -> set[str]:
    """The requested devices that are not GPUs."""
    names = {name for _, name, _ in amounts_of(container)}
    return {name for name in names if not is_gpu(name) and not name.startswith(_PLAIN)}


def _nvlink(pod: Template, facts: Facts) -> bool | None:
    """Whether NVLink connects the GPUs that the pod can get; None if unknown."""
    selected = pod.spec.at("nodeSelector", _PRODUCT).text
    labels = [selected] if selected else [node.labels.get(_PRODUCT, "") for node in gpu_nodes_for(pod, facts)]
    found = [products.find(label) for label in labels]
    if any(product and product.reach in (products.NONE, products.BRIDGE) for product in found):
        return False
    return True if found and all(found) else None


def _host_network(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    field = pod.spec.at("hostNetwork")
    if not pod.uses_gpu or field.value is not True:
        return
    policy = pod.spec.at("dnsPolicy")
    if policy.text in ("", "ClusterFirst"):
        message = f"with hostNetwork {policy.text or 'the default ClusterFirst'} uses the DNS of the node: write {_DNS}"
        yield RuleMatch(policy if policy else field, message, (put(policy, _DNS),))
    if not _needs_host(pod):
        message = "nothing in the pod needs the host network: remove hostNetwork"
        yield RuleMatch(field, message)


def _needs_host(pod: Template) -> bool:
    spec = pod.spec
    return (
        pod.gpus > 1
        or any(spec.at(name).value is True for name in ("hostPID", "hostIPC"))
        or any(spec.at("resourceClaims").each())
        or any(
            _others(container)
            or container.at("securityContext", "privileged").value is True
            or container.at("securityContext", "capabilities", "add").value
            or any(port.at("hostPort") for port in container.at("ports").each())
            or any(name.startswith(_LIBRARIES) for name, _ in env_of(container))
            for container in pod.all_containers
        )
    )


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
{0}  containers:
  - name: train
    image: registry.example.com/train:1.4
    env: [{{name: {1}, value: "{2}"}}]
    resources: {{limits: {{nvidia.com/gpu: 2, memory: 64Gi}}}}
    volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
  volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 8Gi}}}}]
"""

RULES = (
    Rule(
        id="G21",
        level=Severity.WARNING,
        title="NCCL has no variable of this name",
        effect="NCCL ignores an unknown variable without a message, and runs with its default.",
        bad=_POD.format("", "NCCL_SOCKET_IFNAMES", "eth0"),
        good=_POD.format("", "NCCL_SOCKET_IFNAME", "eth0"),
        template=_unknown_variable,
        source="https://github.com/NVIDIA/nccl: v2.27.5, NCCL_PARAM and ncclGetEnv; "
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    Rule(
        id="G22",
        level=Severity.WARNING,
        title="A variable disables a network or link that the pod has",
        effect=(
            "If the interface does not exist, NCCL ends with `Bootstrap : no socket interface found`. Instead of "
            "disabled transports NCCL uses slower ones: host memory instead of peer-to-peer, TCP instead of RDMA."
        ),
        bad=_POD.format("", "NCCL_SOCKET_IFNAME", "ens5"),
        good=_POD.format("", "NCCL_SOCKET_IFNAME", "eth"),
        template=_network_variables,
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html: NCCL_SOCKET_IFNAME, Debugging",
    ),
    Rule(
        id="G23",
        level=Severity.WARNING,
        title="The pod uses the host network without need, or without the DNS of the cluster",
        effect=(
            "With ClusterFirst such a pod uses the DNS of the node, which does not know Services. Its ports are those "
            "of the node (`node(s) didn't have free ports for the requested pod ports`), and most network plugins do "
            "not apply NetworkPolicies to it."
        ),
        bad=_POD.format("  hostNetwork: true\n", "NCCL_DEBUG", "WARN"),
        good=_POD.format(f"  hostNetwork: true\n  dnsPolicy: {_DNS}\n", "NCCL_DEBUG", "WARN"),
        template=_host_network,
        fixable=True,
        source="https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-dns-policy",
    ),
)
