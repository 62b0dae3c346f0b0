# SPDX-License-Identifier: Apache-2.0
"""A cluster, read once for a command: as a state of the core (`state`), as manifests (`snapshot`), or list by list
(`lists`). Each reader opens a client, reads, and closes it. Nothing here writes to the API server."""
