# SPDX-License-Identifier: Apache-2.0
"""The history in a Prometheus: the collector publishes it day by day, and commands read it back.

`chunks` are records as text that fits into label values, `publication` makes those of the last days from the file of
the collector (`job_index`: which hours of a day have a job), `reader` answers from a Prometheus that has scraped them.
"""
