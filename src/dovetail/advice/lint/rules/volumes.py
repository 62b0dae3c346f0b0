# SPDX-License-Identifier: Apache-2.0
"""Rules about volumes: those that are not accessible from the GPU nodes, or from more than one, and mounts of volumes
that are not there.

A bound claim has the constraints of its volume (node affinity and zone labels, as in the scheduler). An unbound
claim has those of its storage class: the allowed zones, and immediate binding, which creates the volume before the pod
is placed. Immediate binding is reported only for provisioners with single-zone volumes. Claims, volumes and classes
that are not among the objects are not checked.

A mount names a volume of the pod, or a claim template of an object above the pod (JobSet has them in
`volumeClaimPolicies`, and adds the volumes: jobset_types.go of kubernetes-sigs/jobset). Not checked are containers
without an image, a patch of what has the volumes; pods that a runtime or an operator completes; and templates that
another workflow of Argo calls, as they get its volumes (workflow/controller/workflowpod.go of argoproj/argo-workflows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.peers import job_pods, peers_of
from dovetail.advice.lint.pods import Template, mounts_of
from dovetail.advice.lint.rule import Facts, KnownNode, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import ZONE, asked, fulfils_term, grows, suited
from dovetail.kube.translate.problems import nearest

_ZONE_LABELS = {
    ZONE: ZONE,
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_ZONAL = {
    "ebs.csi.aws.com": "",
    "kubernetes.io/aws-ebs": "",
    "pd.csi.storage.gke.io": "regional",
    "kubernetes.io/gce-pd": "regional",
    "disk.csi.azure.com": "ZRS",
    "kubernetes.io/azure-disk": "ZRS",
}
"""Provisioners with single-zone volumes, and the text in a parameter that makes them multi-zone."""
_SIMILARITY = 0.6
_ONE_POD = "ReadWriteOncePod"
_ONE_NODE = ("ReadWriteOnce", _ONE_POD)
_MOST_GPUS = 16
"""The largest number of GPUs in one machine."""
_WORKFLOW_TEMPLATES = ("WorkflowTemplate", "ClusterWorkflowTemplate")


def _elsewhere(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    nodes = suited(pod, facts) if facts.nodes else ()
    if not asked(pod) or not nodes or not all(ZONE in node.labels for node in nodes):
        return
    zones = ", ".join(sorted({node.labels[ZONE] for node in nodes}))
    for field, claim in _claims(pod, facts):
        fault = _fault(claim, nodes, facts)
        if fault:
            yield RuleMatch(field, f"{fault}; the GPU nodes for this pod are in {zones}", guess=grows(facts))


def _without_volume(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    missing = [
        mount.at("name")
        for container in pod.all_containers
        for mounts in (mounts_of(container), _devices(container))
        for name, mount in mounts
        if name and name not in pod.volumes
    ]
    if not missing or pod.partial or _called(pod.whole):
        return
    if not all(container.at("image").text for container in pod.all_containers):
        return
    volumes = {*pod.volumes, *_claim_templates(pod)}
    for name in missing:
        if name.text not in volumes:
            near = nearest(name.text, sorted(volumes - {""}), _SIMILARITY)
            meant = f"did you mean {near}?" if near else "add it to volumes, or remove the mount"
            yield RuleMatch(name, f"the pod has no volume {name.text}: {meant}")


def _devices(container: Field) -> Iterator[tuple[str, Field]]:
    for device in container.at("volumeDevices").each():
        yield device.at("name").text, device


def _on_one_node(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    if not facts.of_kind("PersistentVolumeClaim") or not pod.gpu_containers or (pods := _pods_of(pod)) < 2:
        return
    for field, claim in _claims(pod, facts):
        modes = [mode.text for mode in claim.at("spec", "accessModes").each()]
        if field.name != "claimName" or len(modes) != 1 or modes[0] not in _ONE_NODE:
            continue
        several = pods * pod.gpus > _MOST_GPUS
        if modes[0] == _ONE_POD or several:
            what = "one pod" if modes[0] == _ONE_POD else "the pods of one node"
            message = (
                f"the claim {field.text} is {modes[0]}, for {what} alone, and {pods} pods of {pod.gpus} GPUs mount it: "
                "use a storage class with ReadWriteMany, or a claim for each pod"
            )
            # A driver without attachments, such as NFS, mounts ReadWriteOnce on several nodes.
            yield RuleMatch(field, message, guess=modes[0] != _ONE_POD)


def _pods_of(pod: Template) -> int:
    """How many pods of this template there are at a time."""
    *above, last = pod.field.path or ("",)
    if last != "template":
        return peers_of(pod)
    beside = pod.whole.at(*above)
    return max(beside.at("replicas").whole or 1, job_pods(beside), peers_of(pod))


def _claim_templates(pod: Template) -> Iterator[str]:
    """The names of the claims that the objects above the pod make for it."""
    above = pod.field.path[len(pod.whole.path) :]
    for depth in range(len(above) + 1):
        at = pod.whole.at(*above[:depth])
        policies = at.at("volumeClaimPolicies").each()
        for claims in (at.at("volumeClaimTemplates"), *[one.at("templates") for one in policies]):
            yield from (claim.at("metadata", "name").text for claim in claims.each())


def _called(whole: Field) -> bool:
    """Whether the volumes of an Argo workflow can be those of another object: the one that calls its templates, or the
    one that they are in."""
    spec = whole.at("spec", "workflowSpec") or whole.at("spec")
    return whole.at("kind").text in _WORKFLOW_TEMPLATES or bool(spec.at("workflowTemplateRef"))


def _claims(pod: Template, facts: Facts) -> Iterator[tuple[Field, Field]]:
    """(the field that names it, the claim) of each claim of the pod that is among the objects."""
    namespace = _namespace(pod.whole)
    for volume in pod.spec.at("volumes").each():
        name = volume.at("persistentVolumeClaim", "claimName")
        made = volume.at("ephemeral", "volumeClaimTemplate")
        if made:
            yield made, made
        for claim in facts.of_kind("PersistentVolumeClaim") if name.text else ():
            if claim.at("metadata", "name").text == name.text and _namespace(claim) == namespace:
                yield name, claim
    yield from ((claim, claim) for claim in pod.whole.at("spec", "volumeClaimTemplates").each())


def _fault(claim: Field, nodes: tuple[KnownNode, ...], facts: Facts) -> str:
    """The reason why no node can access the volume, or not in every zone where it may be created; "" if there is
    none."""
    volume = _volume(claim, facts)
    if volume is not None:
        if any(_reaches(volume, node) for node in nodes):
            return ""
        return f"the volume {volume.at('metadata', 'name').text} of this claim is accessible from no GPU node"
    name = claim.at("spec", "storageClassName").text
    of = _first(facts, "StorageClass", lambda one: one.at("metadata", "name").text == name)
    if of is None or claim.at("spec", "volumeName").text:
        return ""
    topologies = list(of.at("allowedTopologies").each())
    if topologies and not any(_in_topology(topology, node) for topology in topologies for node in nodes):
        return f"the storage class {name} creates no volumes in the zones of the GPU nodes"
    several = _ZONAL.get(of.at("provisioner").text)
    parameters = [value.text for _, value in of.at("parameters").entries()]
    waits = of.at("volumeBindingMode").text == "WaitForFirstConsumer"
    if several is None or waits or topologies or (several and any(several in value for value in parameters)):
        return ""
    others = {node.labels[ZONE] for node in facts.nodes or () if ZONE in node.labels} - {n.labels[ZONE] for n in nodes}
    if not others:
        return ""
    return (
        f"the storage class {name} creates the volume before the pod has a node, possibly in "
        f"{', '.join(sorted(others))}: use one with volumeBindingMode WaitForFirstConsumer"
    )


def _volume(claim: Field, facts: Facts) -> Field | None:
    name = claim.at("spec", "volumeName").text

    def bound(volume: Field) -> bool:
        of = volume.at("spec", "claimRef")
        same = of.at("name").text == claim.at("metadata", "name").text and bool(of.at("name").text)
        here = (of.at("namespace").text or "default") == _namespace(claim)
        return volume.at("metadata", "name").text == name if name else same and here

    return _first(facts, "PersistentVolume", bound)


def _reaches(volume: Field, node: KnownNode) -> bool:
    affinity = volume.at("spec", "nodeAffinity", "required")
    terms = affinity.at("nodeSelectorTerms")
    if affinity and not any(fulfils_term(term, node) for term in terms.each()):
        return False
    for key, value in volume.at("metadata", "labels").entries():
        # Multi-zone volumes join the zones with two underscores.
        if key in _ZONE_LABELS and node.labels.get(_ZONE_LABELS[key]) not in value.text.split("__"):
            return False
    return True


def _in_topology(topology: Field, node: KnownNode) -> bool:
    """Whether the node is in the topology. Keys that a CSI driver sets count only if the node has them."""
    for one in topology.at("matchLabelExpressions").each():
        here = node.labels.get(_ZONE_LABELS.get(one.at("key").text, one.at("key").text))
        if here is not None and here not in [value.text for value in one.at("values").each()]:
            return False
    return True


def _first(facts: Facts, kind: str, test: Callable[[Field], bool]) -> Field | None:
    return next((one for one in facts.of_kind(kind) if test(one)), None)


def _namespace(whole: Field) -> str:
    return whole.at("metadata", "namespace").text or "default"


_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train, labels: {team: vision}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {limits: {nvidia.com/gpu: 1}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], volumeName: pv-1, resources: {requests: {storage: 100Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-1}
spec:
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [%s]}]
---
apiVersion: v1
kind: Node
metadata: {name: gpu-1, labels: {topology.kubernetes.io/zone: zone-a}}
status: {allocatable: {nvidia.com/gpu: 8}}
"""
_MOUNTS = """\
apiVersion: v1
kind: Pod
metadata: {name: train, labels: {team: vision}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  volumes: [{name: models, persistentVolumeClaim: {claimName: models}}]
  containers:
  - name: train
    image: registry.example.com/train:1.4
    volumeMounts: [{name: %s, mountPath: /models}]
    resources: {limits: {nvidia.com/gpu: 1}}
"""
_SHARED = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {team: vision}}
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  backoffLimit: 4
  template:
    spec:
      restartPolicy: Never
      priorityClassName: batch
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: data}}
      - {name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}
      containers:
      - name: train
        image: registry.example.com/train:1.4
        volumeMounts: [{name: data, mountPath: /data}, {name: shm, mountPath: /dev/shm}]
        resources: {limits: {nvidia.com/gpu: 8}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [%s], resources: {requests: {storage: 1Ti}}}
"""

RULES = (
    Rule(
        id="G37",
        level=Severity.WARNING,
        title="A volume is not accessible from the GPU nodes",
        effect=(
            "The pod stays Pending: `node(s) didn't match PersistentVolume's node affinity` or `node(s) had no "
            "available volume zone`. A disk of one zone does not move."
        ),
        bad=_POD % "zone-b",
        good=_POD % "zone-a",
        template=_elsewhere,
        needs_nodes=True,
        source="https://github.com/kubernetes/kubernetes: pkg/scheduler/framework/plugins/{volumebinding,volumezone}",
    ),
    Rule(
        id="G54",
        level=Severity.ERROR,
        title="A container mounts a volume that the pod does not have",
        effect=(
            "The API server refuses the pod: `spec.containers[0].volumeMounts[0].name: Not found`. An operator accepts "
            "the object, and its pods never exist."
        ),
        bad=_MOUNTS % "model-cache",
        good=_MOUNTS % "models",
        template=_without_volume,
        source="https://github.com/kubernetes/kubernetes: pkg/apis/core/validation/validation.go, ValidateVolumeMounts",
    ),
    Rule(
        id="G58",
        level=Severity.WARNING,
        title="Pods on several nodes mount a volume that is for one node, or for one pod",
        effect=(
            "The pods on other nodes stay in ContainerCreating: `Multi-Attach error for volume`; of ReadWriteOncePod "
            "all but one stay Pending: `node has pod using PersistentVolumeClaim with the same name and "
            "ReadWriteOncePod access mode`. The GPUs of a gang wait."
        ),
        bad=_SHARED % "ReadWriteOnce",
        good=_SHARED % "ReadWriteMany",
        template=_on_one_node,
        source="https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes",
    ),
)
