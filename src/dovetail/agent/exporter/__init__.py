# SPDX-License-Identifier: Apache-2.0
"""The exporter: metrics of each GPU and MIG instance with the pods that hold it, under the names of dcgm-exporter."""
