"""Starts the programs under test. They come from the build: FATHOM_BINARY and SCRIPTED_SERVER."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "mini-v4"
BINARY = os.environ.get("FATHOM_BINARY", str(ROOT / "build" / "fathom"))
SCRIPTED = os.environ.get("SCRIPTED_SERVER", str(ROOT / "build" / "tests" / "scripted_server"))


class Process:
    """A server with its output, line by line."""

    def __init__(self, command, ready, stdin=None):
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=stdin, text=True
        )
        self.lines = []
        self.port = None
        self._ready = re.compile(ready)
        self._event = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            match = self._ready.search(line)
            if match and self.port is None:
                self.port = int(match.group(1))
                self._event.set()
        self._event.set()

    def wait_ready(self, seconds=60):
        assert self._event.wait(seconds) and self.port, "\n".join(self.lines)
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def metric(self, name):
        for line in httpx.get(self.url + "/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def wait_metric(self, name, value, seconds=30):
        """`seconds` are for a machine that has other things to do as well."""
        end = time.monotonic() + seconds
        while self.metric(name) != value:
            assert time.monotonic() < end, f"{name} is {self.metric(name)}, not {value}"
            time.sleep(0.01)

    def wait_line(self, text, seconds=30):
        end = time.monotonic() + seconds
        while not any(text in line for line in self.lines):
            assert time.monotonic() < end, "\n".join(self.lines)
            time.sleep(0.01)

    def connect(self, receive_buffer=None):
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def serve(*flags, model=MODEL):
    return Process(
        [BINARY, "serve", "--model", str(model), "--host=127.0.0.1", "--port=0",
         '--default_chat_template_kwargs={"thinking": false}', *flags],
        r"Brpc Server Started on port (\d+)",
    )


@pytest.fixture(scope="session")
def server():
    process = serve("--model_id=mini").wait_ready()
    yield process
    assert process.stop() == 0, "\n".join(process.lines[-20:])


@pytest.fixture
def scripted():
    """scripted(delay_ms=5, ...): a server whose answers are scripted (scripted_server.cc)."""
    started = []

    def start(**options):
        command = [SCRIPTED, str(MODEL / "tokenizer.json")]
        command += [f"{name}={value}" for name, value in options.items()]
        process = Process(command, r"^port (\d+)", stdin=subprocess.PIPE)
        started.append(process)
        return process.wait_ready()

    yield start
    for process in started:
        assert process.process.poll() is None, "the server died: " + "\n".join(process.lines[-20:])
        process.process.stdin.close()
        assert process.process.wait(20) == 0
