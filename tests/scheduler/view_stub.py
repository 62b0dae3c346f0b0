# SPDX-License-Identifier: Apache-2.0
"""In place of the process that answers views: reads its options, reports a port, and ends with its stream, or at once
if the port that it is to listen at is 9."""

import json
import sys


def main() -> None:
    options = json.loads(sys.stdin.buffer.readline())
    print(json.dumps({"port": 4711, "ca_pem": options["front_proxy"]["ca_pem"]}), flush=True)
    while not options["listen"].endswith(":9") and sys.stdin.buffer.read(1):
        pass


if __name__ == "__main__":
    main()
