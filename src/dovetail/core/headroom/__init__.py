# SPDX-License-Identifier: Apache-2.0
"""Headroom: room for further instances of a serving workload, which others use until it is needed.

`table` has how much of it is stated and where it lies, `instances` the pods that one more instance would have,
`lending` how long others take to return it, `rooms` works out where it lies and keeps others from it, `scale_up` which
jobs are evicted when it is needed.
"""
