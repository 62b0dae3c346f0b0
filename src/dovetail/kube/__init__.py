# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API: how to reach it, and the objects that Dovetail reads and writes there.

From the wire up: `http1` (connections), `client` (one request, retried), `listing` and `watching` (one collection),
`reflector` (a collection kept up to date), `lease` (leader election). `config` and `credentials` are the server's
address and the identity; `resources` and `discovery` list the kinds that exist; `errors` is the exception tree.
"""
