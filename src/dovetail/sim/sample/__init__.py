# SPDX-License-Identifier: Apache-2.0
"""The traces packaged with Dovetail: the GPU nodes and the `default` pod list of openb, and an excerpt of the job lists
of Philly. README.md has sources and licences."""

from __future__ import annotations

from importlib.resources import files

NODES = files(__name__) / "openb_node_list_gpu_node.csv.gz"
PODS = files(__name__) / "openb_pod_list_default.csv.gz"
BURSTS = files(__name__) / "philly_vc_excerpt.csv.gz"
