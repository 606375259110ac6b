"""What the scripts of this folder share: commands that must succeed, and a gate in front of an API that says what it was asked."""

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request


def run(*command, **options):
    """What a command prints. It ends the script if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def must(what, holds):
    if not holds:
        sys.exit(f"{os.path.basename(sys.argv[0])}: expected that {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Asked(http.server.BaseHTTPRequestHandler):
    """Answers with the path that was asked for."""

    def do_GET(self):
        body = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def upstream():
    """The port of an API that says what it was asked."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


def carries_a_call(*program, **variables):
    """Starts the gate of a program that was installed, sends a call through it, and ends it."""
    words = [str(word) for word in program]
    with tempfile.TemporaryDirectory() as folder, upstream() as port:
        gate, admin = free_port(), free_port()
        config = f"{folder}/tidegate.toml"
        with open(config, "w") as file:
            file.write(f'[admin]\nlisten = "127.0.0.1:{admin}"\n')
            file.write(f'[gates.api]\nkind = "http"\nupstream = "http://127.0.0.1:{port}"\nlisten = "127.0.0.1:{gate}"\n')
        environment = {"PATH": os.environ["PATH"], "HOME": folder} | variables
        told = lambda command, *more: subprocess.run([*words, command, *more, "--config", config], capture_output=True, text=True, env=environment)
        checked = told("check")
        must(f"{words} finds the configuration right, not {checked.stdout}{checked.stderr}", checked.returncode == 0)
        with open(f"{folder}/log", "w+") as log:
            process = subprocess.Popen([*words, "run", "--config", config], env=environment, stdout=log, stderr=log)
            try:
                for _ in range(600):
                    if process.poll() is not None or told("health").returncode == 0:
                        break
                    time.sleep(0.1)
                log.seek(0)
                must(f"the gate of {words} is ready within a minute:\n{log.read()}", process.poll() is None)
                with urllib.request.urlopen(f"http://127.0.0.1:{gate}/orders/7?a=b", timeout=20) as answer:
                    must("the call reached the API as it was", json.load(answer) == {"path": "/orders/7?a=b"})
                process.send_signal(signal.SIGTERM)
                must("the gate ends when it is asked to", process.wait(timeout=60) == 0)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
