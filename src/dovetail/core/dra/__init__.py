# SPDX-License-Identifier: Apache-2.0
"""Devices by claim: Dynamic Resource Allocation (resource.k8s.io/v1) as the scheduler sees it.

Rules: what can be allocated is exactly what the upstream allocator allocates; which of equal devices are taken is our
own choice, the best linked ones.
"""
