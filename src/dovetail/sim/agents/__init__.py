# SPDX-License-Identifier: Apache-2.0
"""Software agents with bursts of work that share the GPUs of one cluster, on a virtual clock: what each way of sharing
does to the same work. `protocol` has what agents and policies send each other."""
