# SPDX-License-Identifier: Apache-2.0
"""Devices by claim: Dynamic Resource Allocation (resource.k8s.io/v1) as the scheduler sees it.

Rules: an allocation is found exactly where the upstream allocator finds one. Which of equal devices are allocated is
our own choice: the best linked ones.
"""
