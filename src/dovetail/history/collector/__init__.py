# SPDX-License-Identifier: Apache-2.0
"""The process that writes the history of a running cluster into a store (`dovetail collector`).

- `pod_facts`: what objects show of a pod beside what the core knows; `gpu_lists`: the GPUs that a GPUNode lists.
- `collector`: follows the state, and writes; `run` assembles the process, `endpoints` answers probes, `metrics` counts.
"""
