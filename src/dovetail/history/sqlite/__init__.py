# SPDX-License-Identifier: Apache-2.0
"""The past of a cluster in one SQLite file: one process writes it, and others read it meanwhile.

- `file`: the tables, how a file is opened, and what is wrong with one that cannot be.
- `reader`: what is in the file; `store`: what is written; `uses`: how hours of use are coded.
- `retention`: what is dropped, and hours of use added up to days.
"""
