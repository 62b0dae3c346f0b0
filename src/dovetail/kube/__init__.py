# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API: how to reach it, and the objects that Dovetail reads and writes there.

`api` has the client, lists, watches and leases; `objects` the types on the wire; `translate`, `gangs` and `nodes` turn
them into records of the core. `reading` reads a cluster once, and `manifests` reads one from files.
"""
