# SPDX-License-Identifier: Apache-2.0
"""Published traces and job lists, read into the records of `sim.workload`. One module for each format."""
