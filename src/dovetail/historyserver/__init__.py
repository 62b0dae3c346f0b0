# SPDX-License-Identifier: Apache-2.0
"""The questions that commands ask of the history, from its file or from the collector, and the process that answers
them for the collector: the aggregated API history.dovetail.dev.

- `questions`: what is asked; `answers`: the answer from a reader, as a user may see it; `past_jobs`, `periods`: parts.
- `elsewhere`: what a user of one namespace sees of others.
- `server`: HTTPS, and a process for each question; `__main__` starts it; `options`: what the collector passes to it.
"""
