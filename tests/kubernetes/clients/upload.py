"""Does with requests what `controller upload` does: `upload.py URL SIZE:RUNS...`."""

import os
import sys

import requests

base, *sizes = sys.argv[1:]
session = requests.Session()
session.verify = os.environ.get("CA_FILE", True)
session.headers["Authorization"] = "Bearer wrong"
for size, runs in (map(int, what.split(":")) for what in sizes):
    answered, followed, first = 0, 0, None
    for _ in range(runs):
        try:
            session.post(f"{base}/api/v1/namespaces/default/configmaps", data=b"x" * size)
            answered += 1
        except requests.RequestException as error:
            first = first or error
        try:
            session.get(f"{base}/version")
            followed += 1
        except requests.RequestException as error:
            first = first or f"next: {error}"
    print(size, runs, answered, followed, first)
