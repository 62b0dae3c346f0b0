# SPDX-License-Identifier: Apache-2.0
"""The pods of agents' own endpoints, carried into their leases on the host cluster.

Each AgentControlPlane with `backend: api` has an endpoint (`apiserver.planes`) on which its agent makes pods and Jobs.
A pod of it becomes a pod of the plane's namespace on the host; a pod that asks for GPUs becomes one once a lease holds
them. Status and deletions come back.

- `names`: what a pod of an endpoint is called on the host, and the labels by which it is found again.
- `fields`: what of a pod is carried, field by field; `host_pod`: the host's pod that follows from it, or a refusal.
- `wants`: which devices a pod asks for, and the gang with which it negotiates.
- `facts`, `decisions`: from what there is to what is to be done, without input or output; `statuses`: what the endpoint
  shows.
- `endpoint`, `host_namespace`, `leases`: the three sides; `carrier` joins them for one plane.
"""
