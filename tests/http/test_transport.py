"""Raw sockets: what clients do wrong must harm nobody else."""

import json
import os
import socket
import threading
import time

import httpx
import pytest


def request(body, path="/v1/chat/completions", headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{headers}\r\n").encode() + data


def question(text, **options):
    return {"messages": [{"role": "user", "content": text}], **options}


def read_head(sock):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    head, rest = data.split(b"\r\n\r\n", 1)
    return int(head.split()[1]), head.decode().lower(), rest


def read_answer(sock, rest=b""):
    """One answer with a length: status, body, and what follows."""
    data = rest
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    head, data = data.split(b"\r\n\r\n", 1)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(data) < length:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return int(head.split()[1]), data[:length], data[length:]


def assert_works(server):
    assert httpx.post(server.url + "/v1/chat/completions", json=question("hi"), timeout=20).status_code == 200


def test_half_close_ends_the_request(scripted):
    server = scripted(delay_ms=2)
    for stream in (True, False):
        sock = server.connect()
        sock.sendall(request(question("repeat 100000 word", stream=stream)))
        server.wait_metric("num_running_requests", 1)
        sock.shutdown(socket.SHUT_WR)
        server.wait_metric("num_running_requests", 0)
        sock.close()
    server.wait_metric("request_status_total_cancelled", 2)
    assert_works(server)


def test_reset_ends_the_request(scripted):
    server = scripted(delay_ms=2)
    sock = server.connect()
    sock.sendall(request(question("repeat 100000 word", stream=True)))
    server.wait_metric("num_running_requests", 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    sock.close()
    server.wait_metric("num_running_requests", 0)
    assert_works(server)


def test_leaving_behind_pipelined_bytes_is_noticed(scripted):
    server = scripted(delay_ms=2)
    sock = server.connect()
    sock.sendall(request(question("repeat 100000 word")) + b"x" * 200_000)
    server.wait_metric("num_running_requests", 1)
    sock.close()
    server.wait_metric("num_running_requests", 0)


def test_clients_that_vanish_are_probed(scripted):
    """A network that goes away can't be had here; that the kernel watches the connection can be seen."""
    server = scripted(delay_ms=50)
    sock = server.connect()
    sock.sendall(request(question("repeat 1000 word")))
    server.wait_metric("num_running_requests", 1)
    port, timers = f":{server.port:04X}", []
    with open("/proc/net/tcp") as table:
        for row in map(str.split, table):
            if row[1].endswith(port) and row[2].endswith(f":{sock.getsockname()[1]:04X}"):
                kind, ticks = row[5].split(":")
                timers.append((int(kind), int(ticks, 16)))
    [(kind, ticks)] = timers
    assert kind == 2 and 0 < ticks <= 30 * os.sysconf("SC_CLK_TCK"), timers  # keep-alive, in half a minute
    sock.close()


def test_slow_reader_is_dropped(scripted):
    server = scripted(stream_queue_bytes=100_000)
    sock = server.connect(receive_buffer=4096)
    sock.sendall(request(question("repeat 200000 word", stream=True)))
    server.wait_metric("request_status_total_cancelled", 1)
    server.wait_metric("num_running_requests", 0)
    assert_works(server)
    sock.close()


def test_a_stalled_client_is_dropped_by_time(scripted):
    server = scripted(stall_timeout_s=0.5, stream_queue_bytes=1 << 30)
    sock = server.connect(receive_buffer=4096)
    # Long enough that the engine is still at it when the client has stalled for that time.
    sock.sendall(request(question("repeat 2000000 word", stream=True)))
    server.wait_metric("request_status_total_cancelled", 1)
    sock.close()


def test_slowloris(scripted):
    server = scripted(header_timeout_s=0.5, body_timeout_s=0.7, stall_timeout_s=0.5)
    slow = server.connect()
    slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHo")
    body = server.connect()
    body.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    assert_works(server)
    for sock in (slow, body):
        status, answer, _ = read_answer(sock)
        assert status == 408
        assert json.loads(answer)["error"]["type"] == "invalid_request_error"
        assert sock.recv(100) == b""
    # A body that trickles is cut by the time of the whole body.
    drip = server.connect()
    drip.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    start = time.monotonic()
    drip.settimeout(0.1)
    while time.monotonic() - start < 60:
        try:
            drip.sendall(b"x")
            if drip.recv(100):
                break
        except TimeoutError:
            pass
    assert time.monotonic() - start < 30


def test_pipelining(scripted):
    server = scripted(delay_ms=1)
    sock = server.connect()
    sock.sendall(request({"prompt": "one"}, "/tokenize") + request(question("repeat 3 a"))
                 + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + request({"prompt": "two"}, "/tokenize"))
    rest = b""
    answers = []
    for _ in range(4):
        status, body, rest = read_answer(sock, rest)
        assert status == 200, body
        answers.append(json.loads(body))
    assert answers[0]["count"] and answers[1]["choices"] and answers[2]["status"] == "ok" and answers[3]["count"]
    sock.close()


def test_keep_alive_and_close(scripted):
    server = scripted()
    sock = server.connect()
    for _ in range(3):
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(sock)[0] == 200
    sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert read_answer(sock)[0] == 200
    assert sock.recv(10) == b""
    old = server.connect()
    old.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    assert read_answer(old)[0] == 200
    assert old.recv(10) == b""


def test_http_1_0_stream_ends_with_the_connection(scripted):
    server = scripted()
    data = json.dumps(question("repeat 3 ab", stream=True)).encode()
    sock = server.connect()
    sock.sendall(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    status, head, rest = read_head(sock)
    assert status == 200 and "chunked" not in head
    while piece := sock.recv(65536):
        rest += piece
    assert rest.endswith(b"data: [DONE]\n\n")


def test_chunked_body_and_expect(scripted):
    server = scripted()
    sock = server.connect()
    data = json.dumps({"prompt": "hello"}).encode()
    sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for byte in data:
        sock.sendall(b"1\r\n%c\r\n" % byte)
    sock.sendall(b"0\r\n\r\n")
    assert read_answer(sock)[0] == 200
    sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
                 % len(data))
    status, _, rest = read_head(sock)
    assert status == 100 and rest == b""
    sock.sendall(data)
    assert read_answer(sock)[0] == 200


def test_too_large(scripted):
    server = scripted(max_body_bytes=100_000)
    # Announced: refused before it is sent. Not announced: refused when it becomes too large.
    sock = server.connect()
    sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n")
    status, body, _ = read_answer(sock)
    assert status == 413 and json.loads(body)["error"]["type"] == "invalid_request_error"
    answer = httpx.post(server.url + "/tokenize", content=b"x" * 300_000)
    assert answer.status_code == 413
    chunked = httpx.post(server.url + "/tokenize", content=(b"x" * 1000 for _ in range(300)))
    assert chunked.status_code == 413
    sock = server.connect()
    sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n")
    assert read_answer(sock)[0] == 431
    assert_works(server)


def test_the_default_limit_takes_64_megabytes(scripted):
    server = scripted()
    answer = httpx.post(server.url + "/tokenize", content=json.dumps({"x": "y" * 64_000_000, "prompt": "a"}),
                        timeout=60)
    assert answer.status_code == 200
    assert httpx.post(server.url + "/tokenize", content=b" " * 68_000_000, timeout=60).status_code == 413


@pytest.mark.parametrize("data, status", [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls\r\n\r\n", 400),
    (b"GET\r\n\r\n", 400),
    (b"GET /health HTTP/9.9\r\n\r\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (request(b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'), 400),
    (request(b'{"messages": '), 400),
    (request(b""), 400),
    (request(b"[" * 100_000), 400),
    (request(b"{" + b'"a":{' * 10_000), 400),
    (b"DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    (b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    (b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    (b"GET http://x/health?a=b HTTP/1.1\r\nHost: x\r\n\r\n", 200),
])
def test_odd_requests(scripted, data, status):
    server = scripted()
    sock = server.connect()
    sock.sendall(data)
    got, body, _ = read_answer(sock)
    assert got == status, body
    if status != 200:
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert_works(server)


def test_head_and_options(scripted):
    server = scripted()
    sock = server.connect()
    sock.sendall(b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    data = b""
    while data.count(b"\r\n\r\n") < 2:
        data += sock.recv(65536)
    first, second = data.split(b"\r\n\r\n")[:2]
    assert first.startswith(b"HTTP/1.1 200") and b"Content-Length: 15" in first
    assert second.startswith(b"HTTP/1.1 204") and b"Allow: GET, HEAD, OPTIONS" in second


def test_silent_streams_get_comments(scripted):
    server = scripted(delay_ms=900, comment_interval_s=0.2)
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=question("hi", stream=True),
                      timeout=20) as answer:
        text = "".join(answer.iter_text())
    assert ": keep-alive\n\n" in text
    assert text.endswith("data: [DONE]\n\n")


def test_500_idle_connections(scripted):
    server = scripted()
    idle = [server.connect() for _ in range(500)]
    assert_works(server)
    for sock in idle[::50]:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(sock)[0] == 200
    for sock in idle:
        sock.close()


def test_idle_connections_are_closed_in_the_end(scripted):
    server = scripted(idle_timeout_s=0.3)
    sock = server.connect()
    assert sock.recv(10) == b""


def test_too_many_connections(scripted):
    server = scripted(max_connections=20)
    socks = [server.connect() for _ in range(20)]
    for sock in socks:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(sock)[0] == 200
    extra = server.connect()
    assert read_answer(extra)[0] == 503
    for sock in socks:
        sock.close()
    end = time.monotonic() + 30
    while httpx.get(server.url + "/health").status_code == 503:
        assert time.monotonic() < end
    assert_works(server)


def test_disconnect_storm(scripted):
    server = scripted(delay_ms=1)
    survivor = {}

    def long_request():
        answer = httpx.post(server.url + "/v1/chat/completions", json=question("repeat 400 word"), timeout=60)
        survivor["text"] = answer.json()["choices"][0]["message"]["content"]

    thread = threading.Thread(target=long_request)
    thread.start()
    for i in range(200):
        sock = server.connect()
        sock.sendall(request(question("repeat 100000 word", stream=bool(i % 2))))
        if i % 3:
            sock.close()
        else:
            threading.Timer(0.05, sock.close).start()
    thread.join()
    assert survivor["text"] == "word" * 400
    server.wait_metric("num_running_requests", 0)
    server.wait_metric("num_concurrent_requests", 0)


def test_request_ids(scripted):
    server = scripted()
    answer = httpx.get(server.url + "/health", headers={"x-request-id": "my-id"})
    assert answer.headers["x-request-id"] == "my-id"
    assert httpx.get(server.url + "/nowhere").headers["x-request-id"]
