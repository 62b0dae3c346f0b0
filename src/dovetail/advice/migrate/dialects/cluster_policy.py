# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's GPU Operator: its ClusterPolicy, or an NVIDIADriver without one, as a GPUStack.

What Dovetail takes over is named in spec.takeOver, so that applying the GPUStack beside the GPU Operator is the
beginning of a takeover, node by node. Driver, container toolkit, DCGM and what serves virtual machines stay with the
GPU Operator. The device plugin's ConfigMap is read if it is among the files: each configuration is a pool of the nodes
whose label names it.
Sources: NVIDIA/gpu-operator: api/nvidia/v1/clusterpolicy_types.go, api/nvidia/v1alpha1/nvidiadriver_types.go,
deployments/gpu-operator/values.yaml (defaults).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dovetail.advice.lint.edits import Edit, put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import count
from dovetail.advice.migrate.step import (
    Left,
    MigrationStep,
    SourceDialect,
    World,
    group_of,
    left,
    unknown,
    without_status,
)
from dovetail.kube.yaml_text import read_yaml

_GROUP = "nvidia.com"
VERSION, KIND = "dovetail.dev/v1alpha1", "GPUStack"
_CONFIG_LABEL = "nvidia.com/device-plugin.config"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SECONDS = re.compile(r"(\d+)(ms|s|m|h)?")
_FACTOR = {"m": 60, "h": 3600}

_STAYS = "stays with the GPU Operator, beside which Dovetail works"
_DRIVER = (
    "the driver container stays with the GPU Operator; to replace it drain the nodes, then write driver.mode: "
    "Container and driver.image by digest"
)
_TOOLKIT = (
    "the container toolkit stays with the GPU Operator; to replace it write runtime.configure, an image by digest, "
    "when the GPU Operator is gone"
)
_MACHINES = f"GPUs of virtual machines are not Dovetail's: {_STAYS}"
_WHOLE = {
    "nodeStatusExporter": "the operator and the agents export the state of each node by themselves",
    "dcgm": f"{_STAYS}: agents read profiling values of it",
    "gds": f"is part of the driver container: {_STAYS}",
    "gdrcopy": f"is part of the driver container: {_STAYS}",
    "sandboxWorkloads": _MACHINES,
    "vfioManager": _MACHINES,
    "sandboxDevicePlugin": _MACHINES,
    "kataSandboxDevicePlugin": _MACHINES,
    "vgpuManager": _MACHINES,
    "vgpuDeviceManager": _MACHINES,
    "kataManager": _MACHINES,
    "ccManager": _MACHINES,
}
"""Components without an equal. Where one is switched off nothing is lost."""
_ITS_IMAGE = "is of NVIDIA's image, which the agent replaces"
_COMMON = {
    "repository": _ITS_IMAGE,
    "image": _ITS_IMAGE,
    "version": _ITS_IMAGE,
    "imagePullPolicy": f"{_ITS_IMAGE}: image.pullPolicy is that of Dovetail's",
    "imagePullSecrets": f"{_ITS_IMAGE}: image.pullSecrets are those of Dovetail's",
    "resources": "are those of another program: agent.resources are the agent's",
    "args": "are of another program: the agent's options are in agent.pools[].extraArgs",
    "env": "is of another program: the agent's options are in agent.pools[].extraArgs",
}
_LEFT: Mapping[str, Mapping[str, str]] = {
    "operator": {
        "defaultRuntime": "the runtime of each node is read from its kubelet",
        "initContainer": "there is no such container: the walk of each node waits for what it needs",
        "labels": "objects of the operator have labels of its own",
        "annotations": "objects of the operator have annotations of their own",
        "use_ocp_driver_toolkit": _DRIVER,
        "logging": "`dovetail operator` has --log-level and --log-format",
    },
    "daemonsets": {
        "labels": "agents have labels of their own",
        "annotations": "agents have annotations of their own",
        "tolerations": "agents tolerate every taint",
        "priorityClassName": "agents are system-node-critical",
        "updateStrategy": "agents are replaced within the budgets of upgrade",
        "podSecurityContext": "agents have the one that they need",
        "hostNetwork": "agents are in the network of pods",
    },
    "driver": {},
    "toolkit": {},
    "devicePlugin": _COMMON | {"mps": "MPS of the agent has a folder of its own"},
    "gfd": _COMMON,
    "dcgmExporter": _COMMON
    | {
        "config": "a list of counters is an option of the agent, --exporter-counters, with a file that its pod mounts",
        "service": "metrics are scraped from each agent; there is no Service",
        "hostPID": "agent.pools[].processes reads the processes of the host",
        "hostNetwork": "agents are in the network of pods",
    },
    "migManager": _COMMON
    | {
        "enabled": f"{_STAYS}; to replace it write agent.pools[].mig.layout, and add mig-manager to takeOver",
        "config": "layouts have the names and the format of mig-parted: agent.pools[].mig.layout names one",
        "gpuClientsConfig": "the agent changes idle GPUs alone, and stops nothing for it",
    },
    "psp": {"enabled": "Pod Security Policies are no longer supported by Kubernetes"},
    "psa": {"enabled": "the namespaces of Dovetail have the labels of Pod Security admission"},
    "mig": {},
    "cdi": {
        "default": "with runtime.cdi devices are passed by CDI alone",
        "nriPluginEnabled": "agents need no device that is injected",
    },
    "hostPaths": {
        "rootFS": "agents mount the folders of the host that they need",
        "driverInstallDir": "agents look for a driver container at /run/nvidia/driver, and for other drivers at /usr",
        "kubeletRootDir": "agents work with /var/lib/kubelet",
    },
}
"""By section the fields that are lost, and why; those that are read are not among them."""
_READ: Mapping[str, tuple[str, ...]] = {
    "operator": ("runtimeClass",),
    "daemonsets": ("rollingUpdate",),
    "driver": ("enabled", "upgradePolicy"),
    "toolkit": ("enabled",),
    "devicePlugin": ("enabled", "config"),
    "gfd": ("enabled",),
    "dcgmExporter": ("enabled", "serviceMonitor", "hpcJobMapping"),
    "mig": ("strategy",),
    "cdi": ("enabled",),
    "validator": (),
}
_UPGRADE = {
    "autoUpgrade": "changes of the GPUStack are rolled out; upgrade.paused holds them",
    "podDeletion": "pods that use GPUs are evicted by upgrade.drain",
    "gpuPodDeletion": "pods that use GPUs are evicted by upgrade.drain",
}
_UPGRADE_READ = ("maxParallelUpgrades", "maxUnavailable", "waitForCompletion", "drain")
_VALIDATOR = "nodes are validated by a pod that goes through scheduler, agent and kubelet: spec.validation"


def _whole(whole: Field, world: World) -> Iterator[MigrationStep]:
    if group_of(whole) != _GROUP:
        return
    kind = whole.at("kind").text
    if kind == "ClusterPolicy":
        yield _cluster_policy(whole, world)
    elif kind == "NVIDIADriver":
        others = [one for one in world.of(_GROUP, kind) if one.at("metadata", "name").text != _name(whole)]
        if others or any(world.of(_GROUP, "ClusterPolicy")):
            text = f"a GPUStack has one driver for all nodes: {_DRIVER}"
            yield left(whole.at("kind"), text)
        else:
            yield _driver(whole)
    elif kind == "GPUCluster":
        yield left(whole.at("kind"), f"{_STAYS}; write a GPUStack with agent.pools[].allocation: DRA to replace it")


def _cluster_policy(whole: Field, world: World) -> MigrationStep:
    spec, lost = whole.at("spec"), list[Left]()
    lost += unknown(spec, *_LEFT, *_READ, *_WHOLE)
    for name, why in _WHOLE.items():
        section = spec.at(name)
        if section and section.at("enabled").value is not False:
            lost.append(Left(section, why))
    for name, known in _LEFT.items():
        section = spec.at(name)
        if name not in ("driver", "toolkit"):
            lost += unknown(section, *known, *_READ.get(name, ()))
        lost += [Left(section.at(each), why) for each, why in known.items() if section.at(each)]
    for name, why in (("driver", _DRIVER), ("toolkit", _TOOLKIT), ("validator", _VALIDATOR)):
        section = spec.at(name)
        if any(each != "upgradePolicy" for each, _ in section.entries()) and _on(section):
            lost.append(Left(section, why))
    pool, pools = _pools(spec, world, lost)
    made = {
        "runtime": _runtime(spec),
        "agent": {"pools": [*pools, {"name": "default"} | pool]} if pool or pools else {},
        "metrics": _metrics(spec, lost),
        "upgrade": _upgrade(spec, lost),
        "takeOver": _take_over(spec),
    }
    return _stack(whole, made, lost)


def _stack(whole: Field, spec: Mapping[str, Any], lost: list[Left]) -> MigrationStep:
    version, kind, meta = whole.at("apiVersion"), whole.at("kind"), whole.at("metadata")
    spec = {name: value for name, value in spec.items() if value not in (None, "", {}, [])}
    edits: tuple[Edit, ...] = (*without_status(whole), put(whole.at("spec"), spec))
    if len(list(meta.entries())) > 1:
        # Labels and annotations of Helm, and what a server wrote.
        edits += (put(meta, {"name": _name(whole)}),)
    edits += (put(kind, KIND), put(version, VERSION))
    return MigrationStep(version, f"{kind.text} is a {KIND} of {VERSION}", edits, left=tuple(lost))


def _name(whole: Field) -> str:
    return whole.at("metadata", "name").text


def _on(section: Field) -> bool:
    """Whether a component is switched on; without a word it is."""
    return section.at("enabled").value is not False


def _take_over(spec: Field) -> list[str]:
    names = {"devicePlugin": "device-plugin", "gfd": "gpu-feature-discovery", "dcgmExporter": "dcgm-exporter"}
    return [name for section, name in names.items() if _on(spec.at(section))]


def _runtime(spec: Field) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if spec.at("operator", "runtimeClass").text not in ("", "nvidia"):
        made["className"] = spec.at("operator", "runtimeClass").text
    if spec.at("cdi", "enabled").value is False:
        made["cdi"] = False
    return made


def _pools(spec: Field, world: World, lost: list[Left]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the pool of all nodes has, and pools for nodes with a configuration of their own."""
    pool: dict[str, Any] = {}
    plugin, strategy = spec.at("devicePlugin"), spec.at("mig", "strategy").text
    if not _on(plugin):
        pool["allocation"] = "None"
        strategy = ""
        lost.append(
            Left(plugin.at("enabled"), "something else offers the GPUs: with allocation None Dovetail does not")
        )
    if strategy not in ("", "none"):
        pool["mig"] = {"strategy": strategy}
    if not _on(spec.at("gfd")):
        pool["labels"] = False
    mapping = spec.at("dcgmExporter", "hpcJobMapping")
    if mapping.at("enabled").value is True:
        pool["extraArgs"] = ["--exporter-job-labels"]
        lost += unknown(mapping, "enabled")
    elif mapping:
        lost.append(Left(mapping, "it is off; --exporter-job-labels in agent.pools[].extraArgs names the jobs"))
    if not _on(plugin):
        return pool, []
    own, pools = _configurations(plugin.at("config"), world, lost)
    return _agreed(pool | own, plugin, lost), [_agreed(pool | one, plugin, lost) for one in pools]


def _agreed(pool: dict[str, Any], plugin: Field, lost: list[Left]) -> dict[str, Any]:
    """The pool without what a GPUStack refuses."""
    if "mig" in pool and pool.get("sharing", {}).get("strategy") == "mps":
        lost.append(Left(plugin, f"{pool.get('name', 'default')}: MPS cannot share GPUs in MIG mode"))
        return {name: value for name, value in pool.items() if name != "mig"}
    return pool


def _configurations(config: Field, world: World, lost: list[Left]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    name, default = config.at("name").text, config.at("default").text
    if not name:
        if config:
            lost.append(Left(config, "names no ConfigMap"))
        return {}, []
    data = world.named("", "ConfigMap", name).at("data")
    files = dict(data.entries())
    if not files:
        lost.append(Left(config, f"the ConfigMap {name} is not among the files: with it its configurations are pools"))
        return {}, []
    first = default or ("default" if "default" in files else next(iter(files)) if len(files) == 1 else "")
    made = {key: _configuration(inner, config, lost) for key, inner in files.items()}
    pools = [
        {"name": _pool_name(key, number), "nodeSelector": {"matchLabels": {_CONFIG_LABEL: key}}} | pool
        for number, (key, pool) in enumerate(made.items())
        if key != first
    ]
    return made.get(first, {}), pools


def _pool_name(key: str, number: int) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")
    # Keys that differ in case or signs alone need names of their own.
    return f"{name[:36].strip('-') or 'pool'}-{number}" if name != key.lower() or name == "default" else name[:40]


def _configuration(file: Field, config: Field, lost: list[Left]) -> dict[str, Any]:
    """What one configuration of the device plugin is in a pool."""
    try:
        whole = Field(read_yaml(file.text))
    except yaml.YAMLError:
        lost.append(Left(config, f"{file.name} is no YAML"))
        return {}
    pool: dict[str, Any] = {}
    if (strategy := whole.at("flags", "migStrategy").text) not in ("", "none"):
        pool["mig"] = {"strategy": strategy}
    for key, name in (("mps", "mps"), ("timeSlicing", "time-slicing")):
        shared = whole.at("sharing", key)
        if not shared or "sharing" in pool:
            continue
        resources = [
            {"name": one.at("name").text, "replicas": one.at("replicas").value}
            for one in shared.at("resources").each()
            if one.at("name").text and isinstance(one.at("replicas").value, int)
        ]
        pool["sharing"] = {"strategy": name, "resources": resources}
        if isinstance(shared.at("failRequestsGreaterThanOne").value, bool):
            pool["sharing"]["failRequestsGreaterThanOne"] = shared.at("failRequestsGreaterThanOne").value
        if shared.at("renameByDefault").value is True:
            lost.append(Left(config, f"{file.name}: renameByDefault: a GPUStack offers replicas as nvidia.com/gpu"))
    others = [str(one.name) for part in ("flags", "imex") for _, one in whole.at(part).entries()]
    if more := [one for one in others if one != "migStrategy"]:
        lost.append(Left(config, f"{file.name}: {', '.join(more)}: the agent has options of its own"))
    return pool


def _metrics(spec: Field, lost: list[Left]) -> dict[str, Any]:
    monitor = spec.at("dcgmExporter", "serviceMonitor")
    made: dict[str, Any] = {}
    if monitor.at("enabled").value is True:
        made["scrape"] = "ServiceMonitor"
    elif monitor.at("enabled").value is False:
        made["scrape"] = "Annotations"
    interval = _SECONDS.fullmatch(monitor.at("interval").text)
    if interval is not None and interval[2] != "ms":
        made["intervalSeconds"] = int(interval[1]) * _FACTOR.get(interval[2], 1)
    elif monitor.at("interval"):
        lost.append(Left(monitor.at("interval"), "metrics.intervalSeconds is a whole number of seconds"))
    why = "the ServiceMonitor of Dovetail is made by the operator"
    lost += [Left(inner, why) for name, inner in monitor.entries() if name not in ("enabled", "interval")]
    return made


def _upgrade(spec: Field, lost: list[Left]) -> dict[str, Any]:
    policy, made = spec.at("driver", "upgradePolicy"), dict[str, Any]()
    rolling = spec.at("daemonsets", "rollingUpdate", "maxUnavailable")
    parallel, unavailable = policy.at("maxParallelUpgrades"), policy.at("maxUnavailable")
    sizes = [one for one in (parallel, unavailable, rolling) if one and one.value != 0]
    if sizes:
        made["maxNodes"] = str(sizes[0].value)
        lost += [Left(one, f"upgrade.maxNodes is that of {sizes[0]}") for one in sizes[1:]]
    elif parallel:
        made["maxNodes"] = "100%"
    wait, drain = policy.at("waitForCompletion"), policy.at("drain")
    if drain.at("enable").value is True:
        made["drain"] = "Evict"
    deadline = next((n for one in (wait, drain) if (n := count(one.at("timeoutSeconds")))), None)
    if deadline:
        made["deadlineSeconds"] = deadline
    if drain.at("timeoutSeconds") and count(wait.at("timeoutSeconds")):
        lost.append(Left(drain.at("timeoutSeconds"), "upgrade.deadlineSeconds is that of waitForCompletion"))
    if wait.at("podSelector"):
        lost.append(Left(wait.at("podSelector"), "all pods with GPUs count"))
    lost += [Left(inner, "eviction is that of Kubernetes, within disruption budgets") for name, inner in drain.entries()
             if name not in ("enable", "timeoutSeconds")]  # fmt: skip
    lost += unknown(policy, *_UPGRADE_READ, *_UPGRADE)
    lost += [Left(policy.at(name), why) for name, why in _UPGRADE.items() if policy.at(name)]
    return made


def _driver(whole: Field) -> MigrationStep:
    """An NVIDIADriver for all nodes."""
    spec, lost = whole.at("spec"), list[Left]()
    version, named = spec.at("version").text, spec.at("image").text
    repository = spec.at("repository").text
    made: dict[str, Any] = {}
    read: tuple[str, ...] = ()
    if _DIGEST.fullmatch(version):
        made = {"mode": "Container", "image": f"{repository}/{named}@{version}" if repository else f"{named}@{version}"}
        read = ("version", "image", "repository")
    else:
        lost.append(Left(spec.at("version") or spec.at("image"), "driver.image is by digest: write driver.mode: "
                         "Container and the digest of the image for your nodes' system"))  # fmt: skip
    for name, inner in spec.entries():
        if name in read or inner == spec.at("version"):
            continue
        lost.append(Left(inner, _DRIVER_FIELDS.get(name, "has no equal: the driver container has its own defaults")))
    return _stack(whole, {"driver": made}, lost)


_DRIVER_FIELDS = {
    "repository": "is part of driver.image",
    "image": "is part of driver.image",
    "nodeSelector": "a GPUStack has one driver for all nodes",
    "nodeAffinity": "a GPUStack has one driver for all nodes",
    "driverType": "drivers of virtual machines are not Dovetail's",
    "tolerations": "the driver tolerates every taint",
    "priorityClassName": "the driver is system-node-critical",
    "imagePullPolicy": "image.pullPolicy is that of Dovetail's image",
    "imagePullSecrets": "image.pullSecrets are those of all images",
}

CLUSTER_POLICY = SourceDialect("GPU Operator", _whole)
