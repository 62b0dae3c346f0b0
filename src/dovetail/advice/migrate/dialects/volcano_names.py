# SPDX-License-Identifier: Apache-2.0
"""Labels and annotations of Volcano that have no equal, and what to do instead.

Sources: https://github.com/volcano-sh/apis: pkg/apis/{scheduling/v1beta1,batch/v1alpha1}/labels.go;
https://github.com/volcano-sh/volcano: pkg/scheduler/api/devices/nvidia/vgpu (November 2026).
"""

from __future__ import annotations

NO_EQUAL = {
    "volcano.sh/preemptable": "write dovetail.dev/preemptible on the pod: false keeps it within its guarantee",
    "volcano.sh/vgpu-mode": "the device plugin of the nodes configures sharing; for MIG request nvidia.com/mig-PROFILE",
    "volcano.sh/use-gpuuuid": "a pod cannot request a GPU by its UUID",
    "volcano.sh/nouse-gpuuuid": "a pod cannot exclude a GPU by its UUID",
    "volcano.sh/vgpu-podgroup-policy": "Dovetail packs by the wiring of the GPUs, and reads no policy from pods",
    "volcano.sh/revocable-zone": "nodes that are there at times only: write a nodeSelector for their label",
    "volcano.sh/jdb-min-available": "write a PodDisruptionBudget with this minAvailable",
    "volcano.sh/jdb-max-unavailable": "write a PodDisruptionBudget with this maxUnavailable",
    "volcano.sh/numa-topology-policy": "the Topology Manager of the kubelet decides this",
    "volcano.sh/sla-waiting-time": "no waiting time is promised: write a priority class, or a guarantee of the queue",
    "volcano.sh/cooldown-time": "minRuntime of the queue protects jobs that have just started",
    "volcano.sh/hierarchy": "write parent in the Queue, and a Queue for each that it names",
    "volcano.sh/hierarchy-weights": "write weight in each Queue of the path",
    "volcano.sh/job-type": "stays as a plain label: Dovetail reads no type of job",
    "volcano.sh/nodegroup-name": "pods choose nodes: write nodeSelector or affinity",
    "volcano.sh/network-topology-mode": "write a node label in dovetail.dev/topology-required or topology-preferred",
    "volcano.sh/network-topology-highest-tier": "tiers are numbers of HyperNodes: write a node label in "
    "dovetail.dev/topology-required",
    "scheduling.volcano.sh/group-min-member": "write dovetail.dev/gang-min: as many pods start together",
    "scheduling.volcano.sh/group-min-resources": "is not needed: the requests of the pods count",
    "volcano.sh/qos-level": "requests and limits make the QoS class of a pod: write them",
    "volcano.sh/shared-limits-group-key": "write a Queue with the limit, and make it the parent of the others",
    "volcano.sh/is-shared-limits-group-leader": "write a Queue with the limit, and make it the parent of the others",
    "volcano.sh/queue-alias": "a Queue has no other name for display",
    "volcano.sh/queue-group-alias": "a Queue has no other name for display",
    "volcano.sh/job-forwarding": "Dovetail manages one cluster",
    "volcano.sh/forward-cluster": "Dovetail manages one cluster",
    "volcano.sh/burst-name": "Dovetail manages one cluster",
    "volcano.sh/silo-resource": "Dovetail manages one cluster",
    **{
        f"volcano.sh/{name}": "Volcano wrote it: drop it"
        for name in (
            "task-spec",
            "task-index",
            "job-name",
            "job-namespace",
            "job-version",
            "job-retry-count",
            "template-uid",
            "reservation-name",
            "cronjob-scheduled-timestamp",
            "topology-decision",
            "vgpu-time",
            "vgpu-ids-new",
            "devices-to-allocate",
            "vgpu-node",
            "bind-time",
            "bind-phase",
            "predicate-time",
            "gpu-index",
        )
    },
}
