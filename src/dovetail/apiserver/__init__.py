# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server: objects, watches, patches and the rules of kinds over HTTP, without a cluster behind it.

`server` answers requests, `writes` and `deletions` carry out what the API's rules allow, `store` keeps the objects and
their history. The playground adds kubelets, controllers and faults. Each module lists what it does not know.
"""
