# SPDX-License-Identifier: Apache-2.0
"""The trace packaged with Dovetail: the GPU nodes and the `default` pod list of openb. README.md has source and
licence."""

from __future__ import annotations

from importlib.resources import files

NODES = files(__name__) / "openb_node_list_gpu_node.csv.gz"
PODS = files(__name__) / "openb_pod_list_default.csv.gz"
