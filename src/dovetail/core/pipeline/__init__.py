# SPDX-License-Identifier: Apache-2.0
"""The scheduling pipeline: what happens to one workload, phase by phase. The names are those of kube-scheduler's
framework.

1. queue sort (`queue`, by `queues.queue_order`): which workload is next.
2. pre-filter (`known_refusals`): it is passed over where an equal workload was refused and nothing has changed since.
3. pre-enqueue checks (`pre_enqueue`): bad input, gates, missing objects of its gang, its queue.
4. filter and score (`placement`, by `placing.filters`, `placing.scores` and `placing.gangs`; replicas that are spread
   over failure domains by `spreading`): nodes for each of its groups, within the queue's limits, and so that no
   reservation is delayed.
5. reserve and bind (`binding`): the placement is kept, and becomes a Bind for each pod.
6. post-filter (`post_filter`), where a group does not fit: preemption, else a reservation.
7. permit (`half_starts`): a gang that has started by half is released when it is overdue.

`attempt` runs phases 3 to 7 for a workload, `core.cycle` all of them for one step. `equivalence` keeps what failed, by
`signature`.
"""
