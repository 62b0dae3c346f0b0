# SPDX-License-Identifier: Apache-2.0
"""Leases of GPUs: software agents ask for them through their own control planes, and the broker negotiates.

A lease is room for a bounded time on exact devices, with a fence. The pure rules, module by module:

- `types`: planes, requests with their alternatives, leases; what a driver reads from objects.
- `states`: the states of a request and of a lease, and the events that lead from one to another.
- `placeholders`: an alternative as the pods of a workload. So requests wait in the queues of jobs, are placed by the
  same search, hold room in the same books, are charged in the same ledger, and get reservations as jobs do.
- `negotiation`: how far one request is; `requests`: all of them; `places`: which of them a plane may have negotiated at
  a time; `leases`: the live leases, with the pods inside.
- `negotiating`: from a request to its grant: `waiting` is what waits in a queue and holds devices for it, `offers` what
  is offered and granted, `counter_offers` what may be asked for instead, `reports` what is reported.
- `terms`: a lease from its start to its end: renewal, return, revocation, expiry, lost heartbeats. `inside`: pods are
  placed within the lease that they name.
- `broker`: what is due, in one step.
"""
