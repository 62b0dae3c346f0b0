# SPDX-License-Identifier: Apache-2.0
"""Many API servers in one process: a control plane for each software agent, durable, authenticated and limited.

    host = PlaneHost(Path("/var/lib/dovetail/planes"))
    await host.start()
    await host.create("team-a", "researcher")
    token = await host.issue_token("team-a", "researcher")
    host.url_of("team-a", "researcher")              # https://HOST:PORT/planes/team-a/researcher

`host` routes and opens planes, `registry` knows which there are and their tokens, `plane` is one that is open,
`limits` what each may use. Pods are stored and not run: `agentplanes` carries them to a cluster.
"""
