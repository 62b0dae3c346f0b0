# SPDX-License-Identifier: Apache-2.0
"""The history in a Prometheus: the collector publishes it day by day, and commands read it back.

`chunks` are records as text that fits into label values, `publication` makes those of the last days from the file of
the collector, `reader` answers from a Prometheus that has scraped them.
"""
