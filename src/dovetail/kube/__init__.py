# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API: how to reach it, and the objects that Dovetail reads and writes there.

From the wire up: `http1` (connections), `client` (one request, retried), `listing` and `watching` (one collection),
`reflector` (a collection kept up to date), `lease` (who leads). `config` and `credentials` say where and as whom;
`resources` and `discovery` say what there is; `errors` is the exception tree.
"""
