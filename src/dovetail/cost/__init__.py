# SPDX-License-Identifier: Apache-2.0
"""What the GPUs of a cluster cost, and for which holders: sums that equal the bill.

- `rounding`: exact amounts, and the cents that are shown of them. `calendar`: periods and days of a time zone.
- `price_rules`: which price a GPU has; `price_files`, `opencost`, `list_prices`: where prices are read from.
- `cells`: the time of all GPUs with prices and use, in exact integers; `pod_groups`: that of whole days by group, as
  columns (`keyed_sums`, `holders`). `grouping`, `group_sums`, `idle_rules`: the rows that it makes.
- `bill`: what the GPUs cost, whatever became of their time; `node_prices`: what whole nodes cost.
- `capacity`: which GPUs to rent, to buy or to give back: the answer of `dovetail capacity`.
- `costs`: the answer of `dovetail cost`; `utilization`: that of `dovetail report`; `focus`: columns of FOCUS.
"""
