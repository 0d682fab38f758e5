"""The HTTP load generator (tools/load_http.py) against the bundled model, for a few seconds."""

import json
import subprocess
import sys
import time

from conftest import ROOT, serve

SMALL = ("--max_seqs_per_batch=8", "--max_model_len=1024", "--max_tokens_per_batch=512",
         "--max_cache_size=24000000", "--prefix_group_tokens=128")


def load(server, *options):
    command = [sys.executable, str(ROOT / "tools" / "load_http.py"), "--url", server.url, "--prompt", "1:120",
               "--answer", "1:30", "--seconds", "2", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_streams_aborts_and_full_caches():
    server = serve(*SMALL).wait_ready()
    generator = load(server, "--streams", "24", "--aborts", "0.25", "--pid", str(server.process.pid))
    report = json.loads(generator.communicate()[0])
    assert server.stop() == 0
    assert generator.returncode == 0 and report["faults"] == []
    counts = report["requests"]
    assert counts["finished"] > 0 and counts["aborted"] > 0 and counts["lost"] == counts["failed"] == 0
    assert counts["submitted"] == counts["finished"] + counts["aborted"] + counts["refused"]


def test_arrivals_beyond_the_limit_are_refused_at_once():
    server = serve(*SMALL, "--max_concurrent_requests=3").wait_ready()
    generator = load(server, "--rate", "60", "--aborts", "0")
    report = json.loads(generator.communicate()[0])
    assert server.stop() == 0
    assert generator.returncode == 0 and report["faults"] == []
    assert report["requests"]["refused"] > 0 and report["requests"]["finished"] > 0


def test_a_server_that_dies_is_a_fault():
    server = serve(*SMALL).wait_ready()
    generator = load(server, "--streams", "24", "--canaries", "0", "--answer", "400:600")
    while server.metric("num_running_requests") == 0:
        time.sleep(0.02)
    server.process.kill()
    report = json.loads(generator.communicate()[0])
    assert generator.returncode == 1
    assert report["requests"]["failed"] > 0 and report["faults"]
