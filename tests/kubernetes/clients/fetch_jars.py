"""Fetches the jars of a list, `SHA256 PATH` per line, from a Maven repository into a folder."""

import concurrent.futures
import hashlib
import os
import pathlib
import sys
import urllib.request

REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo.maven.apache.org/maven2").rstrip("/")


def fetch(line, folder):
    wanted, path = line.split()
    with urllib.request.urlopen(f"{REPOSITORY}/{path}", timeout=120) as answer:
        content = answer.read()
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        sys.exit(f"{path}: expected SHA-256 {wanted}, got {found}")
    (folder / path.rsplit("/", 1)[1]).write_bytes(content)


lines = pathlib.Path(sys.argv[1]).read_text().splitlines()
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for done in [pool.submit(fetch, line, pathlib.Path(sys.argv[2])) for line in lines if line.strip()]:
        done.result()
