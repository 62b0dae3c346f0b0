# SPDX-License-Identifier: Apache-2.0
"""Reservations: nodes that are held for workloads that do not fit yet.

`reservation` has the record and its states, `table` the reservations that there are, `planner` the nodes and the start
of one, `precedence` which workload may hold one, `pledges` what evictions for them will change in the queues, and
`expected_ends` when running pods end.
"""
