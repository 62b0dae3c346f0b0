# SPDX-License-Identifier: Apache-2.0
"""Preemption and consolidation: which pods are evicted or moved for a workload, proven before it is decided."""
