# SPDX-License-Identifier: Apache-2.0
"""Small random clusters as Kubernetes manifests, on which every filter plugin has something to refuse.

Rules: an object is what the API server would hand out, defaults filled in and label keys merged into selectors; the
referee's question "admit" holds them to that. Amounts are few and small, so that a node is often just full.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dovetail.core import quantities

Manifest = dict[str, Any]
T = TypeVar("T")

HOST, ZONE, REGION = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
RACK, SIZE = "dovetail.dev/rack", "example.com/size"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
MIB = 2**20
SCHEDULER = "default-scheduler"


class Dice:
    """A random case, the same one for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._nodes = [f"n{i}" for i in range(self._random.randint(1, 6))]
        self._uids = 0

    def case(self, case_id: str) -> Manifest:
        """A cluster and the pod to place in it, as the question "filter"."""
        volumes = [self._volume(i) for i in range(self._random.randint(1, 8))]
        self._reserve(volumes)
        claims = [self._claim(f"c{i}", self._pick(["one"] * 4 + ["two"]), volumes) for i in range(5)]
        claims.append(self._prebound_claim("c6"))
        homes = [*self._nodes, *(["gone"] if self._chance(0.1) else [])]
        pods = [self._pod(f"b{i}", self._pick(homes)) for i in range(self._random.randint(0, 8))]
        if self._chance(0.25):
            pods += [self._nominated(f"w{i}") for i in self._some(1, 2)]
        pod = self._pod("new", "")
        if self._chance(0.05):
            pod["status"]["nominatedNodeName"] = self._pick(self._nodes)
        for owner in (*pods, pod):
            for volume in owner["spec"]["volumes"]:
                if "ephemeral" in volume and self._chance(0.9):
                    claims.append(self._ephemeral_claim(owner, volume["name"], volumes))
        return {
            "id": case_id,
            "question": "filter",
            "nodes": [self._node(name) for name in self._nodes],
            "csiNodes": [self._csi_node(name) for name in self._nodes if self._chance(0.8)],
            "namespaces": [self._namespace("one", "x"), self._namespace("two", "y")],
            "storageClasses": self._storage_classes(),
            "persistentVolumes": volumes,
            "persistentVolumeClaims": claims,
            "pods": pods,
            "pod": pod,
        }

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _some(self, *amounts: int) -> range:
        return range(self._pick(amounts))

    def _pick(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def _uid(self) -> str:
        self._uids += 1
        return f"00000000-0000-4000-8000-{self._uids:012d}"

    def _meta(self, name: str, namespace: str = "", **more: Any) -> Manifest:
        meta = {"name": name, "uid": self._uid(), "creationTimestamp": "2026-01-01T00:00:00Z", **more}
        return meta | ({"namespace": namespace} if namespace else {})

    def _namespace(self, name: str, team: str) -> Manifest:
        labels = {"kubernetes.io/metadata.name": name, "team": team}
        return {"metadata": self._meta(name, labels=labels), "status": {"phase": "Active"}}

    # Quantities, in every way in which they are written.

    def _cpu(self, milli: int) -> str:
        written = [f"{milli}m"] + ([str(milli // 1000)] if milli % 1000 == 0 else [f"{milli / 1000:g}"])
        return self._pick(written)

    def _bytes(self, mib: int) -> str:
        written = [f"{mib}Mi", str(mib * MIB), f"{mib * 1024}Ki"] + ([f"{mib // 1024}Gi"] if mib % 1024 == 0 else [])
        return self._pick(written)

    # Nodes.

    def _node(self, name: str) -> Manifest:
        """A cordon becomes a taint a moment later."""
        labels = {HOST: name} if self._chance(0.97) else {}
        for key, values, often in (
            (ZONE, ["a", "b"], 0.8), (REGION, ["e", "w"], 0.3), (RACK, ["r", "s", "t"], 0.8),
            (SIZE, ["1", "7", "012", "9223372036854775808", "big"], 0.6),
        ):  # fmt: skip
            if self._chance(often):
                labels[key] = self._pick(values)
        cordoned = self._chance(0.06)
        taints = [self._taint() for _ in range(self._pick([0] * 8 + [1, 2]))]
        taints = [CORDON] * (cordoned and self._chance(0.5)) + list(
            {(t["key"], t["effect"]): t for t in taints}.values()
        )
        amounts = {
            "cpu": self._cpu(self._pick([4000, 8000, 8500])),
            "memory": self._bytes(self._pick([6144, 16384])),
            "pods": self._pick(["0", "3", *["110"] * 10]),
            "ephemeral-storage": self._bytes(self._pick([1024, 4096])),
        }
        for resource, often in ((GPU, 0.8), (MIG, 0.4), ("example.com/fpga", 0.4)):
            if self._chance(often):
                amounts[resource] = str(self._pick([0, 1, 2, 3, 4]))
        if self._chance(0.2):
            amounts["hugepages-2Mi"] = self._bytes(self._pick([0, 64, 128]))
        if self._chance(0.02):
            del amounts["pods"]
        return {
            "metadata": self._meta(name, labels=labels),
            "spec": {"taints": taints} | ({"unschedulable": True} if cordoned else {}),
            "status": {"capacity": amounts, "allocatable": amounts},
        }

    def _taint(self) -> Manifest:
        value = self._pick(["", "v", "5", "05"])
        effect = self._pick(["NoSchedule", "NoExecute", "PreferNoSchedule"])
        return {"key": self._pick("kl"), "effect": effect} | ({"value": value} if value else {})

    def _toleration(self) -> Manifest:
        key = self._pick(["", "k", "l", "node.kubernetes.io/unschedulable"])
        operator = self._pick(["Exists", "Equal", "Gt", "Lt"]) if key else "Exists"
        effect = self._pick(["", "NoSchedule", "NoExecute"])
        values = {"Exists": [""], "Equal": ["", "v", "5"], "Gt": ["3", "9", "-3"], "Lt": ["3", "9", "0"]}
        parts = {"key": key, "operator": operator, "value": self._pick(values[operator]), "effect": effect}
        if effect == "NoExecute" and self._chance(0.3):
            parts["tolerationSeconds"] = 300
        return {name: value for name, value in parts.items() if value}

    def _csi_node(self, name: str) -> Manifest:
        count = self._pick([None, 1, 2, 3])
        driver: Manifest = {"name": "csi.example.com", "nodeID": name, "topologyKeys": [ZONE]}
        if count is not None:
            driver["allocatable"] = {"count": count}
        other = {
            "name": "fast.example.com",
            "nodeID": name,
            "topologyKeys": [],
            "allocatable": {"count": self._pick([0, 2])},
        }
        drivers = [driver] * self._chance(0.9) + [other] * self._chance(0.5)
        return {"metadata": self._meta(name), "spec": {"drivers": drivers}}

    # Pods.

    def _pod(self, name: str, node: str) -> Manifest:
        namespace = self._pick(["one", "one", "two"])
        labels = {key: self._pick(["1", "2"]) for key in ("app", "tier") if self._chance(0.8)}
        meta = self._meta(name, namespace, labels=labels)
        if node and self._chance(0.1):
            meta |= {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30}
        spec = self._containers() | {
            "schedulerName": "another" if node and self._chance(0.1) else SCHEDULER,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "securityContext": {},
            "enableServiceLinks": True,
            "priority": self._pick([0, 0, 5]),
            "tolerations": [self._toleration() for _ in self._some(0, 0, 1, 2)],
            "volumes": self._volumes_of_pod(node),
        }
        if node:
            spec["nodeName"] = node
        if self._chance(0.05):
            spec["nodeSelector"] = {self._pick([ZONE, RACK]): self._pick(["a", "r"])}
        if affinity := self._affinity(labels, 0.06 if node else 0.12):
            spec["affinity"] = affinity
        if self._chance(0.2):
            spec["topologySpreadConstraints"] = self._spreads(labels)
        if self._chance(0.2):
            self._add_ports(spec)
        if not node and self._chance(0.03):
            spec["schedulingGates"] = [{"name": "example.com/wait"}]
        status = self._status(spec) if node else {"phase": "Pending", "qosClass": "Burstable"}
        return {"metadata": meta, "spec": spec, "status": status}

    def _nominated(self, name: str) -> Manifest:
        node = self._pick(self._nodes)
        pod = self._pod(name, "")
        pod["status"]["nominatedNodeName"] = node
        pod["spec"]["volumes"] = self._volumes_of_pod(node)
        return pod

    def _containers(self) -> Manifest:
        containers = [self._container(f"main-{i}") for i in self._some(1, 1, 1, 2)]
        init = [self._container(f"init-{i}") for i in self._some(0, 0, 0, 1, 2, 3)]
        for container in init:
            if self._chance(0.5):
                container["restartPolicy"] = "Always"
        spec: Manifest = {"containers": containers, "initContainers": init}
        if self._chance(0.1):
            spec["resources"] = self._pod_level([*containers, *init])
        if self._chance(0.1):
            spec["runtimeClassName"] = "sandboxed"
            spec["overhead"] = {"cpu": self._cpu(self._pick([100, 250])), "memory": self._bytes(self._pick([64, 512]))}
        return spec

    def _container(self, name: str) -> Manifest:
        requests: dict[str, str] = {}
        limits: dict[str, str] = {}
        if milli := self._pick([0, 0, 100, 200, 500, 1500]):
            requests["cpu"] = self._cpu(milli)
            if self._chance(0.3):
                limits["cpu"] = self._cpu(milli + self._pick([0, 500]))
        if mib := self._pick([0, 0, 0, 100, 1024, 2048]):
            requests["memory"] = self._bytes(mib) if self._chance(0.9) else f"{mib * MIB}.5"
        if self._chance(0.08):
            requests["ephemeral-storage"] = self._bytes(self._pick([512, 1024]))
        for resource, often in ((GPU, 0.1), (MIG, 0.03), ("example.com/fpga", 0.02)):
            if self._chance(often):
                requests[resource] = limits[resource] = str(self._pick([0, 1, 1, 2]))
        if "cpu" in requests and self._chance(0.04):
            requests["hugepages-2Mi"] = limits["hugepages-2Mi"] = self._bytes(self._pick([32, 64]))
        return {
            "name": name,
            "image": "registry.example.com/train:1",
            "imagePullPolicy": "IfNotPresent",
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "resources": {part: amounts for part, amounts in (("requests", requests), ("limits", limits)) if amounts},
        }

    def _pod_level(self, containers: list[Manifest]) -> Manifest:
        """Never less than all containers together, and written out for every resource: else the API server would add
        to it."""
        asked = [container["resources"].get("requests", {}) for container in containers]
        milli = sum(quantities.milli(requests.get("cpu", "0")) for requests in asked)
        mib = -(sum(-quantities.units(requests.get("memory", "0")) for requests in asked) // MIB)
        requests = {
            "cpu": self._cpu(milli + self._pick([0, 100, 500])),
            "memory": self._bytes(mib + self._pick([0, 256])),
        }
        limits = {"cpu": self._cpu(milli + 4000), "memory": self._bytes(mib + 4096)}
        if any("hugepages-2Mi" in requests for requests in asked):
            huge = sum(quantities.units(requests.get("hugepages-2Mi", "0")) for requests in asked) // MIB
            requests["hugepages-2Mi"] = limits["hugepages-2Mi"] = self._bytes(huge)
        return {"requests": requests, "limits": limits}

    def _status(self, spec: Manifest) -> Manifest:
        """Of a bound pod; some are in the middle of a resize in place."""
        status: Manifest = {"phase": self._pick(["Pending", "Running"]), "qosClass": "Burstable"}
        if not self._chance(0.2):
            return status
        for part, containers in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
            status[part] = [self._container_status(c) for c in spec[containers] if self._chance(0.9)]
        if self._chance(0.4):
            reason = self._pick(["Infeasible", "Infeasible", "Deferred"])
            status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
        if self._chance(0.3):
            status["allocatedResources"] = self._amounts_in_force()
            if self._chance(0.7):
                status["resources"] = {"requests": self._amounts_in_force()}
        return status

    def _container_status(self, container: Manifest) -> Manifest:
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "restartCount": 0,
        }
        if self._chance(0.8):
            status["allocatedResources"] = self._amounts_in_force()
        if self._chance(0.7):
            status["resources"] = {"requests": self._amounts_in_force()} if self._chance(0.9) else {}
        return status

    def _amounts_in_force(self) -> dict[str, str]:
        amounts = {"cpu": self._cpu(self._pick([100, 500, 1000, 2000])), "memory": self._bytes(self._pick([100, 1024]))}
        return {name: amounts[name] for name in self._pick([["cpu", "memory"]] * 5 + [["cpu"], ["memory"]])}

    def _add_ports(self, spec: Manifest) -> None:
        seen = set()
        spec["hostNetwork"] = self._chance(0.2)
        for container in self._random.sample([*spec["containers"], *spec["initContainers"]], 1):
            ports = []
            for _ in self._some(1, 1, 2):
                number, protocol = self._pick([8080, 9090]), self._pick(["TCP", "UDP", "UDP", "SCTP"])
                ip = "" if spec["hostNetwork"] else self._pick(["", "0.0.0.0", "10.0.0.1", "10.0.0.2"])
                port: Manifest = {"containerPort": number, "protocol": protocol}
                if spec["hostNetwork"] or self._chance(0.9):
                    port["hostPort"] = number
                if ip and "hostPort" in port:
                    port["hostIP"] = ip
                if (number, protocol, ip) not in seen:
                    seen.add((number, protocol, ip))
                    ports.append(port)
            container["ports"] = ports

    def _volumes_of_pod(self, node: str) -> list[Manifest]:
        """Of claims that may not exist (c5), and, for the pod to place, of one that waits for its volume (c6)."""
        volumes: list[Manifest] = []
        if node not in self._nodes and node:
            return volumes
        if self._chance(0.25):
            names = self._random.sample(["c0", "c1", "c2", "c3", "c4"], self._pick([1, 1, 2]))
            if self._chance(0.1):
                names = [self._pick(["c5"] if node else ["c5", "c6"])]
            volumes += [{"name": f"v-{n}", "persistentVolumeClaim": {"claimName": n}} for n in names]
        if self._chance(0.05):
            template = {
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "cloud",
                    "volumeMode": "Filesystem",
                    "resources": {"requests": {"storage": "1Gi"}},
                }
            }
            volumes.append({"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}})
        if self._chance(0.1):
            volumes.append({"name": "tmp", "emptyDir": {}})
        return volumes

    # Selectors, affinity, spread.

    def _requirement(self, keys: Sequence[str], values: Sequence[str]) -> Manifest:
        operator = self._pick(["In", "NotIn", "Exists", "DoesNotExist"])
        found: Manifest = {"key": self._pick(keys), "operator": operator}
        if operator in ("In", "NotIn"):
            found["values"] = self._random.sample(values, self._pick([1, 2]))
        return found

    def _node_term(self, fields: bool = True) -> Manifest:
        expressions = [self._requirement((ZONE, RACK), ("a", "b", "r", "s")) for _ in self._some(0, 1, 1, 2)]
        if self._chance(0.3):
            bound = self._pick(["1", "5", "5", "10", "10", "x"])
            expressions.append({"key": SIZE, "operator": self._pick(["Gt", "Lt"]), "values": [bound]})
        term: Manifest = {"matchExpressions": expressions} if expressions else {}
        if fields and self._chance(0.2):
            name = self._pick(["n0", "n1", "n9"])
            term["matchFields"] = [{"key": "metadata.name", "operator": self._pick(["In", "NotIn"]), "values": [name]}]
        return term

    def _affinity(self, labels: dict[str, str], often: float) -> Manifest:
        affinity: Manifest = {}
        if self._chance(often):
            affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [self._node_term() for _ in self._some(1, 2)]}}
        for kind in ("podAffinity", "podAntiAffinity"):
            if self._chance(often):
                affinity[kind] = {REQUIRED: [self._peers(labels) for _ in self._some(1, 1, 2)]}
            if self._chance(0.02):
                preferred = {"weight": 5, "podAffinityTerm": self._peers(labels)}
                affinity[kind] = affinity.get(kind, {}) | {PREFERRED: [preferred]}
        return affinity

    def _selector(self) -> Manifest | None:
        if self._chance(0.05):
            return None
        if self._chance(0.3):
            return {"matchLabels": {self._pick(["app", "tier"]): self._pick(["1", "2"])}}
        found = [self._requirement(("app", "tier"), ("1", "2")) for _ in self._some(0, 1, 1, 2)]
        return {"matchExpressions": found} if found else {}

    def _peers(self, labels: dict[str, str]) -> Manifest:
        term: Manifest = {"topologyKey": self._pick([HOST, RACK, ZONE])}
        selector = self._selector()
        namespaces = self._random.sample(["one", "two"], self._pick([0, 1, 1, 2]))
        if namespaces:
            term["namespaces"] = namespaces
        if self._chance(0.3):
            by_label = {"matchExpressions": [self._requirement(("team",), ("x", "y"))]}
            term["namespaceSelector"] = by_label if self._chance(0.7) else {}
        if selector is not None and self._chance(0.2):
            self._merge_keys(
                term, selector, labels, self._pick([("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")])
            )
        if selector is not None:
            term["labelSelector"] = selector
        return term

    def _merge_keys(self, term: Manifest, selector: Manifest, labels: dict[str, str], how: tuple[str, str]) -> None:
        """As the API server does when the object is made: the keys stay, their values go into the selector."""
        field, operator = how
        used = {*selector.get("matchLabels", {}), *(r["key"] for r in selector.get("matchExpressions", ()))}
        keys = [key for key in ("app", "tier") if key not in used][:1]
        if not keys:
            return
        term[field] = keys
        merged = [{"key": key, "operator": operator, "values": [labels[key]]} for key in keys if key in labels]
        if merged:
            selector["matchExpressions"] = [*selector.get("matchExpressions", ()), *merged]

    def _spreads(self, labels: dict[str, str]) -> list[Manifest]:
        found = {}
        for _ in self._some(1, 1, 2):
            required = self._chance(0.9)
            spread: Manifest = {
                "topologyKey": self._pick([HOST, RACK, ZONE]),
                "maxSkew": self._pick([1, 1, 2]),
                "whenUnsatisfiable": "DoNotSchedule" if required else "ScheduleAnyway",
            }
            if required and self._chance(0.5):
                spread["minDomains"] = self._pick([1, 2, 3])
            for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
                if self._chance(0.5):
                    spread[policy] = self._pick(["Honor", "Ignore"])
            selector = self._selector()
            if selector is not None:
                if self._chance(0.2):
                    self._merge_keys(spread, selector, labels, ("matchLabelKeys", "In"))
                spread["labelSelector"] = selector
            found[spread["topologyKey"], required] = spread
        return list(found.values())

    # Storage.

    def _storage_classes(self) -> list[Manifest]:
        def of(name: str, provisioner: str, wait: bool, topologies: Iterable[Manifest] = ()) -> Manifest:
            mode = "WaitForFirstConsumer" if wait else "Immediate"
            made: Manifest = {"metadata": self._meta(name), "provisioner": provisioner, "volumeBindingMode": mode}
            return made | {"reclaimPolicy": "Delete"} | ({"allowedTopologies": topologies} if topologies else {})

        topologies = [
            {
                "matchLabelExpressions": [
                    {"key": key, "values": [value, self._pick(["b", "s"])]}
                    for key in self._random.sample([ZONE, RACK], self._pick([1, 1, 2]))
                ]
            }
            for value in self._pick(["", "", "a", "r", "ar"])
        ]
        return [
            of("slow", "kubernetes.io/no-provisioner", True),
            of("cloud", "csi.example.com", True, topologies),
            of("now", "csi.example.com", False),
        ]

    def _volume(self, number: int) -> Manifest:
        name, labels = f"v{number}", {"kind": self._pick("fg")}
        spec: Manifest = {
            "storageClassName": self._pick(["slow"] * 6 + ["cloud"] * 3 + [""]),
            "capacity": {"storage": f"{self._pick([1, 2, 4]) * 1024 + number}Mi"},
            "accessModes": self._pick([["ReadWriteOnce"], ["ReadWriteMany", "ReadWriteOnce"]]),
            "volumeMode": self._pick(["Filesystem"] * 5 + ["Block"]),
            "persistentVolumeReclaimPolicy": "Retain",
        }
        if self._chance(0.5):
            driver = self._pick(["csi.example.com", "csi.example.com", "fast.example.com"])
            spec["csi"] = {"driver": driver, "volumeHandle": f"handle-{number}"}
        else:
            spec["nfs"] = {"server": "10.9.9.9", "path": f"/{name}"}
        if self._chance(0.5):
            terms = [self._node_term(fields=False) for _ in self._some(1, 1, 2)]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        phase = "Available" if self._chance(0.7) else self._pick(["Pending", "Released", "Failed"])
        if phase in ("Released", "Failed"):
            spec["claimRef"] = self._reference("one", self._pick(["c0", "c3"]), self._uid())
        meta = self._meta(name, labels=labels, annotations={})
        if self._chance(0.1):
            meta |= {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 0}
        return self._in_old_words({"metadata": meta, "spec": spec, "status": {"phase": phase}})

    def _in_old_words(self, stored: Manifest) -> Manifest:
        """The class of a volume or claim was an annotation once, and that still comes first."""
        if self._chance(0.05):
            stored["metadata"]["annotations"][BETA_CLASS] = stored["spec"].pop("storageClassName")
        return stored

    def _reserve(self, volumes: list[Manifest]) -> None:
        """Keep some volumes for claims, none for one that has another: which of the two it gets is anybody's guess."""
        free = [volume for volume in volumes if "claimRef" not in volume["spec"]]
        reserved = self._random.sample([("one", "c0"), ("one", "c3"), ("two", "other")], self._pick([0, 1, 1, 2]))
        for volume, (namespace, name) in zip(free, reserved, strict=False):
            volume["spec"]["claimRef"] = self._reference(namespace, name, "")

    def _reference(self, namespace: str, name: str, uid: str) -> Manifest:
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": namespace, "name": name}
        return reference | ({"uid": uid} if uid else {})

    def _claim(self, name: str, namespace: str, volumes: list[Manifest], **more: Any) -> Manifest:
        meta = self._meta(name, namespace, annotations={}, **more)
        modes = [["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadWriteMany"], ["ReadWriteOncePod"]]
        spec: Manifest = {
            "storageClassName": self._pick(["slow"] * 10 + ["cloud"] * 6 + ["now", "missing", ""]),
            "accessModes": self._pick(modes),
            "resources": {"requests": {"storage": f"{self._pick([1, 2, 3])}Gi"}},
            "volumeMode": self._pick(["Filesystem"] * 8 + ["Block"]),
        }
        if self._chance(0.4):
            spec["selector"] = {"matchExpressions": [self._requirement(("kind",), ("f", "g"))]}
        claim = self._in_old_words({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
        free = [volume for volume in volumes if "claimRef" not in volume["spec"]]
        if free and self._chance(0.3):
            self._bind(claim, self._pick(free))
        elif self._chance(0.05):
            self._complete(claim, "lost", "Lost")
        elif self._chance(0.2):
            meta["annotations"]["volume.kubernetes.io/selected-node"] = self._pick(["n0", "n1", "gone"])
        if self._chance(0.03):
            meta |= {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 0}
        return claim

    def _bind(self, claim: Manifest, volume: Manifest) -> None:
        meta = claim["metadata"]
        volume["spec"]["claimRef"] = self._reference(meta["namespace"], meta["name"], meta["uid"])
        volume["status"]["phase"] = "Bound"
        if "ownerReferences" not in meta and self._chance(0.4):
            volume["metadata"]["labels"][self._pick([ZONE, BETA_ZONE, REGION])] = self._pick(["a", "b", "e", "a__b"])
        self._complete(claim, volume["metadata"]["name"], "Bound")

    def _complete(self, claim: Manifest, volume: str, phase: str) -> None:
        claim["spec"]["volumeName"], claim["status"]["phase"] = volume, phase
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes"

    def _prebound_claim(self, name: str) -> Manifest:
        """It names its volume, and the volume controller has not been at work on it yet."""
        claim = self._claim(name, "one", [])
        claim["spec"]["volumeName"] = self._pick(["v0", "v1", "lost"])
        claim["metadata"]["annotations"].pop("pv.kubernetes.io/bind-completed", None)
        return claim

    def _ephemeral_claim(self, pod: Manifest, volume: str, volumes: list[Manifest]) -> Manifest:
        plain = [v for v in volumes if not {ZONE, BETA_ZONE, REGION} & v["metadata"]["labels"].keys()]
        meta = pod["metadata"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        owner |= {"controller": True, "blockOwnerDeletion": True}
        return self._claim(f"{meta['name']}-{volume}", meta["namespace"], plain, ownerReferences=[owner])
