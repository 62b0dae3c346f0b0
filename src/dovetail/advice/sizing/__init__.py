# SPDX-License-Identifier: Apache-2.0
"""What GPUs a job needs, from how it used those that it held. Pure.

- `workload`: what kind of work a job is; `seen`: what was seen of a job over a window, with its class of bottleneck.
- `market`: what GPUs and instance types cost; `fit`: what would hold it: fewer or smaller GPUs, a MIG instance, a part
  of a GPU, another instance type; `links`: how its GPUs were connected; `spot`: what it would cost on spot nodes;
  `parts`: smaller MIG instances and shares.
- `rule`: the records of advice; `rules`: when what is advised, as a table, of `faults`, `waits`, `sizes` and
  `machines`, which propose it; `thresholds`: their numbers.
- `advise`: the advice for each job; `changes`: the edits of a manifest; `follow_up`: whether advice was followed.
"""
