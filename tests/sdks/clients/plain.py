"""Calls with Python's HTTP clients as they are: `plain.py CLIENT`, and a line `CALL URL` on stdin for each. Reports in JSON, a line each."""

import asyncio
import json
import sys
import urllib.request

CALLS = {"read": ("GET", "/things", None), "write": ("POST", "/things", b"{}"), "upload": ("PUT", "/things/1", bytes(5 << 20))}


def requests_calls():
    import requests

    session = requests.Session()

    def call(method, url, body):
        session.request(method, url, data=body, timeout=30).raise_for_status()

    return call


def urllib_calls():
    def call(method, url, body):
        with urllib.request.urlopen(urllib.request.Request(url, body, method=method), timeout=30) as answer:
            answer.read()

    return call


def httpx_calls(http2):
    import httpx

    client = httpx.Client(http2=http2, timeout=30)
    return lambda method, url, body: client.request(method, url, content=body).raise_for_status()


def aiohttp_calls():
    import aiohttp

    loop = asyncio.new_event_loop()

    async def made(method, url, body):
        async with aiohttp.ClientSession(trust_env=True) as session, session.request(method, url, data=body) as answer:
            answer.raise_for_status()
            await answer.read()

    return lambda method, url, body: loop.run_until_complete(made(method, url, body))


def main():
    call = {
        "requests": requests_calls,
        "urllib": urllib_calls,
        "httpx": lambda: httpx_calls(False),
        "httpx-h2": lambda: httpx_calls(True),
        "aiohttp": aiohttp_calls,
    }[sys.argv[1]]()
    for line in sys.stdin:
        name, url = line.split()
        method, path, body = CALLS[name]
        report = {"ok": True, "error": "", "attempts": None}
        try:
            call(method, url + path, body)
        except Exception as error:  # noqa: BLE001: whatever a client makes of an answer is what is reported
            report |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(report), flush=True)


main()
