# SPDX-License-Identifier: Apache-2.0
"""What GPUs there were, which pods held them, how they were used, and how jobs went: the past of a cluster.

- `records`: what is kept; `store`: where it is kept, as one interface; `sqlite`: a file.
- `holdings`: what a placed pod holds of which GPU; `timeline`: records from the states of a cluster.
- `ledger`: the time of all GPUs of a period, divided exactly into allocated, unallocated and unhealthy.
- `job_use`: how jobs used their GPUs over a window.
"""
