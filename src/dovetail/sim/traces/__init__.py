# SPDX-License-Identifier: Apache-2.0
"""Readers of published traces and job lists, one module for each format. They return the records of `sim.workload`."""
