# SPDX-License-Identifier: Apache-2.0
"""The object that a user made for a pod, by which the pod's job is called everywhere: `Job/train`, `Deployment/web`.

Rules
- It is the last one up of the pod's controllers, as far as controllers write its name into the pod: a JobSet, not the
  Job that it made; a Deployment, not its ReplicaSet; a DisaggregatedSet, not its LeaderWorkerSets. No object is read
  for it.
- Kinds are those that a job can be (see `jobs.kinds`). A pod whose controller is of any other kind stands for itself,
  as a pod without a controller does.
- Any user can write any owner and any label into a pod. So the name is valid in the pod's namespace alone, and one that
  no object can have counts for nothing.
Sources: pod-template-hash in k8s.io/kubernetes pkg/controller/deployment/sync.go; the labels of KubeRay in
ray-operator/controllers/ray/utils/constant.go.
"""

from __future__ import annotations

from dovetail.core.bounded_cache import remembered
from dovetail.kube.api.resources import NAME
from dovetail.kube.gangs.declared import Membership
from dovetail.kube.gangs.owners import RAY_LABEL, owned_by
from dovetail.kube.objects.base import OwnerReference
from dovetail.kube.objects.pods import Pod

TEMPLATE_HASH = "pod-template-hash"
_RAY_KIND, _RAY_NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"
_RAY_KINDS = ("RayJob", "RayService")


def object_of(pod: Pod) -> str:
    """KIND/NAME of the object that the pod was made for; "" for none, or one that is not known."""
    return made_for(pod, owned_by(pod)) if pod.metadata.owner_references else ""


def made_for(pod: Pod, owned: Membership | None) -> str:
    """The same; `owned` is what `owned_by` returns for the pod."""
    labels = pod.metadata.labels
    while owned is not None and owned.above is not None:
        owned = owned.above
    if owned is not None and owned.owner is not None:
        kind, name = owned.owner.resource.kind, owned.owner.name
        if RAY_LABEL in labels and labels.get(_RAY_KIND) in _RAY_KINDS:
            kind, name = labels[_RAY_KIND], labels.get(_RAY_NAME, "")
        return _named(kind, name)
    controller = next((one for one in pod.metadata.owner_references if one.controller), OwnerReference())
    if controller.api_version.partition("/")[0] != "apps" or controller.kind not in ("ReplicaSet", "StatefulSet"):
        return ""
    of_deployment = controller.name.removesuffix(f"-{labels.get(TEMPLATE_HASH, '')}")
    if controller.kind == "ReplicaSet" and of_deployment != controller.name:
        return _named("Deployment", of_deployment)
    return _named(controller.kind, controller.name)


@remembered(4096)
def _named(kind: str, name: str) -> str:
    """One text for all pods of an object."""
    return f"{kind}/{name}" if NAME.fullmatch(name) else ""
