"""Calls with the HttpClient of .NET as it is: a line `CALL URL` on stdin for each. Reports in JSON, a line each.

The runtime comes from PyPI, and Python.NET makes the calls in it, so that a machine needs no .NET and no compiler of it. This
runtime wants OpenSSL 1.1, which systems no longer have: psycopg2's package brings it, under a name of its own.
"""

import importlib.util
import json
import os
import pathlib
import sys
import tempfile


def folder(package):
    return pathlib.Path(importlib.util.find_spec(package).origin).parent


def start_with_openssl():
    """Starts over where libraries are not looked for in the folder that has it."""
    libraries = folder("psycopg2").with_name("psycopg2_binary.libs")
    if os.environ.get("LD_LIBRARY_PATH") == str(libraries):
        return
    usual = libraries / "libssl.so.1.1"
    if not usual.exists():
        usual.symlink_to(next(libraries.glob("libssl-*.so.1.1")))
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_LIBRARY_PATH": str(libraries)})


def client():
    import clr_loader
    import pythonnet

    with tempfile.TemporaryDirectory() as made:
        settings = pathlib.Path(made) / "runtimeconfig.json"
        framework = {"name": "Microsoft.NETCore.App", "version": "3.1.23"}
        invariant = {"System.Globalization.Invariant": True}  # it would want ICU
        settings.write_text(json.dumps({"runtimeOptions": {"framework": framework, "configProperties": invariant}}))
        pythonnet.set_runtime(clr_loader.get_coreclr(runtime_config=settings, dotnet_root=folder("dotnetcore2") / "bin"))
        import clr

    clr.AddReference("System.Net.Http")
    from System.Net.Http import HttpClient

    return HttpClient()


def call(client, name, url):
    from System import Array, Byte
    from System.Net.Http import ByteArrayContent, HttpMethod, HttpRequestMessage

    method, path, body = {
        "read": (HttpMethod.Get, "/things", None),
        "write": (HttpMethod.Post, "/things", b"{}"),
        "upload": (HttpMethod.Put, "/things/1", bytes(5 << 20)),
    }[name]
    request = HttpRequestMessage(method, url + path)
    if body is not None:
        request.Content = ByteArrayContent(Array[Byte](body))
    answer = client.SendAsync(request).Result
    answer.EnsureSuccessStatusCode()
    answer.Content.ReadAsByteArrayAsync().Result


def main():
    start_with_openssl()
    calls = client()
    for line in sys.stdin:
        report = {"ok": True, "error": "", "attempts": None}
        try:
            call(calls, *line.split())
        except Exception as error:  # noqa: BLE001: whatever a client makes of an answer is what is reported
            report |= {"ok": False, "error": str(error)[:600]}
        print(json.dumps(report), flush=True)


main()
