# SPDX-License-Identifier: Apache-2.0
"""Headroom: room for further instances of a serving workload, which others use until it is needed.

`table` has who wants how much of it and where it lies, `instances` the pods that one more instance would have, `lending`
how long others take to return it, `rooms` works out where it lies and keeps others from it, `scale_up` who goes when it
is needed.
"""
