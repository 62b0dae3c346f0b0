# SPDX-License-Identifier: Apache-2.0
"""`dovetail idle-policy`: what becomes of workloads that leave their GPUs idle, by degrees: a notice, and with the
consent of their owner they are suspended or scaled to zero.

`decision` is pure. `stoppable` is the table of kinds, `reading` reads what a decision needs, `records` writes it, and
`run` repeats that. All that lasts is in the cluster: another process goes on where this one ended.
"""
