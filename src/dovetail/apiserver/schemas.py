# SPDX-License-Identifier: Apache-2.0
"""The fields of kinds as OpenAPI schemas, so far as `kubectl explain` shows them.

Not complete: the fields that owners of pods and jobs write and read most, in our words. Every other field is stored as
well. Nothing is validated by these schemas, and kubectl does not make patches from them, as no patch operation declares
a body.

Source of names and types: k8s.io/api.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from dovetail.apiserver.objects import Object
from dovetail.apiserver.resources import ServedResource

# By type its name and meaning, then its fields with type and meaning. `[]T` is a list of T, `{}T` a map of texts to T;
# `object` has any fields.
_TYPES = """
ObjectMeta: name, owner and history of an object
  name string: unique in its namespace and kind
  generateName string: the beginning of a name that the server completes, where there is no name
  namespace string: the namespace, of objects that are in one
  labels {}string: what selectors select by
  annotations {}string: any texts, for tools and people
  finalizers []string: while there are any the object is marked as deleted and stays
  ownerReferences []OwnerReference: objects with whose end this one is deleted, when all of them are gone
  uid string: unique for all time; set by the server
  resourceVersion string: the version of the last write; an update of another version is refused
  generation integer: counts changes of the specification
  creationTimestamp string: when it was created; set by the server
  deletionTimestamp string: when it will be gone at the latest; set by a deletion
  managedFields []object: which manager applied which field

OwnerReference: an object that owns another one
  apiVersion string: its API version
  kind string: its kind
  name string: its name
  uid string: its uid
  controller boolean: whether the owner is the one that controls the object
  blockOwnerDeletion boolean: whether the owner waits for the object when it is deleted in the foreground

Condition: one aspect of the status, as of now
  type string: which aspect
  status string: True, False or Unknown
  reason string: the cause, in one word
  message string: the cause, for people
  lastTransitionTime string: since when the status is so

Namespace: a scope of names inside of this control plane
  status NamespaceStatus: whether it is in use
NamespaceStatus: the status of a namespace
  phase string: Active, or Terminating while its contents are deleted

Pod: containers that run together on one node
  spec PodSpec: what is to run
  status PodStatus: what runs
PodSpec: what a pod is to run, and where
  containers []Container: the containers that run side by side; at least one
  initContainers []Container: containers that run before, one after the other
  restartPolicy string: Always, OnFailure or Never
  nodeName string: the node on which it runs; set when it is bound
  nodeSelector {}string: labels that the node must have
  affinity object: rules about nodes and about other pods near it
  tolerations []object: taints of nodes that it tolerates
  schedulerName string: the scheduler that places it
  schedulingGates []object: while there are any, it is not placed
  priorityClassName string: the class that decides its priority
  serviceAccountName string: the ServiceAccount that it runs as
  volumes []object: volumes that its containers may mount
  resourceClaims []object: claims of devices that its containers may use
  hostNetwork boolean: whether it uses the network of its node
  activeDeadlineSeconds integer: after so many seconds it is ended
  terminationGracePeriodSeconds integer: seconds that it has to end by itself
Container: one program of a pod
  name string: unique in the pod
  image string: what is run
  command []string: the program, in place of the entrypoint of the image
  args []string: its arguments
  workingDir string: the folder in which it starts
  env []EnvVar: environment variables
  envFrom []object: ConfigMaps and Secrets whose values become environment variables
  ports []object: ports on which it listens
  resources ResourceRequirements: what it needs of its node
  volumeMounts []object: where volumes of the pod are mounted
  restartPolicy string: Always makes an init container one that runs along with the others
  securityContext object: the rights of its processes
EnvVar: one environment variable
  name string: its name
  value string: its value
  valueFrom object: where the value comes from, in place of a value
ResourceRequirements: what a container needs of its node
  limits {}string: the most that it gets, by resource, such as nvidia.com/gpu
  requests {}string: what is reserved for it, by resource; the limits where it is absent
  claims []object: names of resourceClaims of the pod
PodStatus: what has become of a pod
  phase string: Pending, Running, Succeeded, Failed or Unknown
  reason string: the cause, in one word
  message string: the cause, for people
  conditions []Condition: PodScheduled, Ready and others
  containerStatuses []object: the state of each container
  podIP string: its address
  qosClass string: Guaranteed, Burstable or BestEffort
  startTime string: when its node accepted it

PodTemplateSpec: the pods that a controller makes
  metadata ObjectMeta: their labels and annotations
  spec PodSpec: what they are to run

Job: pods that run until enough of them have succeeded
  spec JobSpec: what is to run, and how often
  status JobStatus: how far it is
JobSpec: the pods of a job
  template PodTemplateSpec: what each of its pods is
  parallelism integer: pods that run at a time; 1 where it is absent
  completions integer: pods that must succeed; without it one success ends the job
  completionMode string: NonIndexed, or Indexed: each pod has a number of its own from 0
  backoffLimit integer: failed pods after which the job has failed; 6 where it is absent
  suspend boolean: whether its pods are deleted, and none are created
JobStatus: how far a job is
  active integer: pods that wait or run
  ready integer: pods that are ready
  succeeded integer: pods that have succeeded
  failed integer: pods that have failed
  startTime string: when it started
  completionTime string: when it was complete
  conditions []Condition: Complete, Failed, Suspended and others

ConfigMap: texts for pods and people
  data {}string: the texts, by key
  binaryData {}string: bytes as base64, by key
  immutable boolean: whether it may not be changed

Secret: bytes that not everybody should read
  type string: what it is for; Opaque means any use
  data {}string: the bytes as base64, by key
  stringData {}string: texts, by key
  immutable boolean: whether it may not be changed

Event: something that has happened to an object
  involvedObject object: the object
  type string: Normal or Warning
  reason string: what has happened, in one word
  message string: what has happened, for people
  count integer: how often
  firstTimestamp string: when first
  lastTimestamp string: when last
  source object: the component that reports it

Service: one name for several pods
  spec ServiceSpec: which pods, and how they are reached
  status object: its addresses outside of the cluster
ServiceSpec: the pods of a service, and how they are reached
  selector {}string: the labels of its pods
  ports []object: its ports
  type string: ClusterIP, NodePort, LoadBalancer or ExternalName
  clusterIP string: its address

PersistentVolumeClaim: storage that is requested
  spec PersistentVolumeClaimSpec: what is requested
  status object: what was bound
PersistentVolumeClaimSpec: the storage that is requested
  accessModes []string: ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod
  resources object: how much
  storageClassName string: the StorageClass
  volumeName string: the volume that is bound

ServiceAccount: the name under which pods run
  secrets []object: Secrets that its pods may use
  imagePullSecrets []object: Secrets with which images are pulled
  automountServiceAccountToken boolean: whether its pods get a token

Lease: a lock that is renewed
  spec LeaseSpec: its holder, and for how long
LeaseSpec: the holder of a lock
  holderIdentity string: the holder
  leaseDurationSeconds integer: seconds after the last renewal for which it is held
  acquireTime string: since when
  renewTime string: when it was last renewed
  leaseTransitions integer: how often the holder has changed

Workload: the gangs that a controller makes pods for
  spec object: templates of its gangs

PodGroup: pods that start together or not at all
  spec PodGroupSpec: when they may start
  status object: whether they were placed
PodGroupSpec: when the pods of a gang may start
  schedulingPolicy object: gang with minCount, the pods without which none starts; or basic
  disruptionMode object: whether its pods are evicted one by one, or together
  priorityClassName string: the class that decides its priority
"""
_SCALARS = ("string", "integer", "boolean", "object")
_HEAD = {"apiVersion": "string: the version of this form", "kind": "string: the kind of this object"}


def schemas_of(resources: Iterable[ServedResource]) -> Object:
    """The schemas of these resources, and of what they refer to, by name."""
    found: Object = {}
    for resource in resources:
        meaning, fields = _types().get(resource.kind, ("", {}))
        head = _HEAD | {"metadata": "ObjectMeta: name, owner and history of the object"}
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        name = f"{resource.group or 'core'}.{resource.version}.{resource.kind}"
        found[name] = _schema(meaning, head | fields) | {"x-kubernetes-group-version-kind": [kind]}
        _add_referred(found, found[name])
    return found


def _add_referred(found: Object, schema: Object) -> None:
    for field in schema["properties"].values():
        inner = field.get("items") or field.get("additionalProperties") or field
        for reference in inner.get("allOf", ()):
            name = reference["$ref"].rpartition("/")[2]
            if name not in found:
                found[name] = _schema(*_types()[name])
                _add_referred(found, found[name])


def _schema(meaning: str, fields: dict[str, str]) -> Object:
    properties = {name: _field(*field.split(": ", 1)) for name, field in fields.items()}
    return {"type": "object", "description": meaning, "properties": properties}


def _field(kind: str, meaning: str) -> Object:
    if kind.startswith("[]"):
        return {"type": "array", "description": meaning, "items": _of(kind[2:])}
    if kind.startswith("{}"):
        return {"type": "object", "description": meaning, "additionalProperties": _of(kind[2:])}
    return _of(kind) | {"description": meaning}


def _of(kind: str) -> Object:
    return {"type": kind} if kind in _SCALARS else {"allOf": [{"$ref": f"#/components/schemas/{kind}"}]}


@cache
def _types() -> dict[str, tuple[str, dict[str, str]]]:
    """Meaning and fields of each type."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    fields: dict[str, str] = {}
    for line in filter(None, _TYPES.splitlines()):
        if not line.startswith(" "):
            name, meaning = line.split(": ", 1)
            fields = {}
            found[name] = meaning, fields
        else:
            field, rest = line.split(maxsplit=1)
            fields[field] = rest
    return found
