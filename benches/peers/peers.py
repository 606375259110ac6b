"""The peers that are measured: how each starts, its configuration file, and the protocols that it speaks."""

import os

from process import Process, free_port

HERE = os.path.dirname(os.path.abspath(__file__))

# The protocols of the client and of the upstream.
PLAIN, SECURE, BOTH = "plain", "tls", "h2"
MODES = {
    PLAIN: "HTTP/1.1 to HTTP/1.1",
    SECURE: "HTTP/1.1 to TLS h2",
    BOTH: "TLS h2 to TLS h2",
}


class Peer:
    """One proxy: `arguments` and the file `config` have @names@ that `start` fills in."""

    modes = (PLAIN, SECURE)
    config = None
    upstream_protocol = "HTTP/2.0"    # over TLS
    without_reason = False            # leaves the reason out of a status line, which h2load takes for a failure and which is none
    fills = {}

    def __init__(self, binary, version):
        self.binary, self.version = binary, version

    def start(self, mode, bench):
        """A running proxy that answers correctly, and its port."""
        port = free_port()
        names = {**bench.names, **self.names(mode, port, bench), "port": port, "listen": f"127.0.0.1:{port}"}
        if self.config:
            kind = os.path.splitext(self.config)[1]
            names["config"] = os.path.join(bench.folder, f"{self.name}-{port}{kind}")
            with open(names["config"], "w") as file:
                file.write(filled(self.config, names))
        argv = [self.binary] + [fill(argument, names) for argument in self.arguments(mode)]
        process = Process(self.name, argv, port, os.path.join(bench.folder, f"{self.name}-{port}.log"), bench.cores.proxy)
        return process, port

    def names(self, mode, port, bench):
        scheme, upstream_port = ("http", bench.plain) if mode == PLAIN else ("https", bench.secure)
        address = f"127.0.0.1:{upstream_port}"
        return {
            "scheme": scheme,
            "upstream": f"{scheme}://{address}",
            "upstream_address": address,
            "upstream_port": upstream_port,
            **self.tls(mode, bench),
        }

    def tls(self, mode, bench):
        """The parts of the file that exist only with TLS."""
        return {}

    def protocol(self, mode):
        return "HTTP/1.1" if mode == PLAIN else self.upstream_protocol


class Nginx(Peer):
    name = "nginx"
    config = "nginx.conf"
    upstream_protocol = "HTTP/1.1"

    def arguments(self, mode):
        return ["-c", "@config@"]


class Haproxy(Peer):
    name = "haproxy"
    config = "haproxy.cfg"
    modes = (PLAIN, SECURE, BOTH)
    without_reason = True

    def arguments(self, mode):
        return ["-db", "-f", "@config@"]

    def tls(self, mode, bench):
        secure = fill("ssl verify required ca-file @ca@ verifyhost localhost sni str(localhost) alpn h2", bench.names)
        listener = fill("ssl crt @both@ alpn h2", bench.names)
        return {"haproxy_tls": "" if mode == PLAIN else secure, "haproxy_listener_tls": listener if mode == BOTH else ""}


class Envoy(Peer):
    name = "envoy"
    config = "envoy.yaml"
    modes = (PLAIN, SECURE, BOTH)

    def arguments(self, mode):
        return ["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c", "@config@"]

    def tls(self, mode, bench):
        return {
            "envoy_listener_tls": filled("envoy-listener-tls.yaml", bench.names) if mode == BOTH else "",
            "envoy_upstream_tls": "" if mode == PLAIN else filled("envoy-upstream-tls.yaml", bench.names),
        }


class Kubectl(Peer):
    name = "kubectl"
    config = "kubeconfig.yaml"

    def arguments(self, mode):
        return ["proxy", "--address=127.0.0.1", "--port=@port@", "--kubeconfig=@config@"]


class Floor(Peer):
    name = "floor"
    modes = (PLAIN, SECURE, BOTH)

    def arguments(self, mode):
        files = {PLAIN: [], SECURE: ["@ca@"], BOTH: ["@ca@", "@certificate@", "@key@"]}
        return ["@listen@", "@upstream@", *files[mode]]


class Tidegate(Peer):
    name, preset = "tidegate", "sidecar"
    bucket = "bucket = { rate = 1000000.0, burst = 1000000 }"
    config = "tidegate.toml"
    modes = (PLAIN, SECURE, BOTH)

    def arguments(self, mode):
        return ["run", "--config", "@config@"]

    def tls(self, mode, bench):
        listener = fill('tls = { mode = "files", cert = "@certificate@", key = "@key@" }', bench.names)
        upstream = fill('upstream_tls = { ca = "@ca@" }', bench.names)
        return {
            "admin": free_port(),
            "preset": self.preset,
            "tidegate_bucket": self.bucket,
            "tidegate_listener_tls": listener if mode == BOTH else "",
            "tidegate_upstream_tls": "" if mode == PLAIN else upstream,
        }


class Unlimited(Tidegate):
    name, preset, bucket = "tidegate-none", "none", ""


ALL = [Nginx, Haproxy, Envoy, Kubectl, Floor, Tidegate, Unlimited]


def filled(name, names):
    """A file of conf/, with its names filled in."""
    with open(os.path.join(HERE, "conf", name)) as file:
        return fill(file.read(), names)


def fill(text, names):
    for name, value in names.items():
        text = text.replace(f"@{name}@", str(value))
    return text
