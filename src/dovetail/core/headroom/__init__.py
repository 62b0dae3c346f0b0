# SPDX-License-Identifier: Apache-2.0
"""Headroom: room for further instances of a serving workload, which others use until it is needed.

`table` has how much of it is stated and where it lies, `instances` the pods that one more instance would have,
`lending` how long others take to return it, `layout` finds places for them, `inputs` has what these were found from,
`rooms` settles where headroom lies and keeps others from it, `scale_up` finds the jobs that are evicted when it is
needed.
"""
