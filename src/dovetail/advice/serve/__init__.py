# SPDX-License-Identifier: Apache-2.0
"""Plans of serving: engine, parallelism, replicas, latencies and cost for a rate of requests."""
