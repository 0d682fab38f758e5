"""More than the server takes: the surplus is told so at once, what was admitted has the tokens that it has alone,
and nothing stays behind. Clients that are slow or silent cost the others nothing."""

import http.client
import json
import random
import re

import pytest

from conftest import serve

SMALL = ("--max_seqs_per_batch=2", "--max_model_len=100000", "--max_tokens_per_batch=256",
         "--max_cache_size=200000000", "--prefix_group_tokens=128")
PATH = "/v1/completions"


def body(n, stream=True, tokens=400):
    """The n-th request."""
    draw = random.Random(n)
    sampling = {"temperature": 0} if n % 2 else {"temperature": 0.9, "top_p": 0.9, "seed": n}
    return {"prompt": [draw.randrange(4000) for _ in range(20 + 30 * n)], "max_tokens": tokens, "ignore_eos": True,
            "logprobs": 1, "stream": stream, **sampling}


@pytest.fixture
def start():
    """start(flag, ...): a server of the bundled model that ends with the test, whatever comes of it."""
    servers = []

    def start_one(*flags):
        servers.append(serve(*SMALL, *flags))
        return servers[-1].wait_ready()

    yield start_one
    assert all([server.stop() == 0 for server in servers])


class Client:
    """One connection; an answer is read only when it is asked for."""

    def __init__(self, server):
        self.http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.http.connect()

    def send(self, content, path=PATH):
        self.http.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        return self

    def answer(self):
        response = self.http.getresponse()
        return response.status, response.headers, response.read().decode()

    def tokens(self):
        """Every token of the answer with its logprob, whether it came as a stream or at once."""
        status, headers, text = self.answer()
        assert status == 200, text
        events = [text]
        if headers["content-type"].startswith("text/event-stream"):
            events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            assert events.pop() == "[DONE]"
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        assert choices[-1]["finish_reason"] == "length"
        logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        return [pair for part in logprobs for pair in zip(part["tokens"], part["token_logprobs"])]


def alone(server, n, **options):
    return Client(server).send(body(n, **options)).tokens()


def assert_idle(server):
    for name in ("num_running_requests", "num_waiting_requests", "num_concurrent_requests"):
        server.wait_metric(name, 0)
    client = Client(server)
    client.http.request("GET", "/metrics")
    metrics = client.answer()[2]
    for family in ("full", "swa", "c128", "state"):
        used, cached = (float(re.search(rf'^{name}{{family="{family}"}} (\S+)$', metrics, re.M).group(1))
                        for name in ("num_used_blocks", "num_blocks_in_prefix_cache"))
        assert used == cached, f"{family}: {used:g} pages used, {cached:g} of them by the prefix cache"


def assert_refused(client, message):
    status, headers, text = client.answer()
    error = json.loads(text)["error"]
    assert status == 429 and headers["retry-after"] == "1"
    assert error == {"message": message, "type": "rate_limit_error", "param": None, "code": None}


@pytest.mark.parametrize("flag, running, waiting, message", [
    ("--max_concurrent_requests=6", 2, 4,
     "6 requests are running, which is --max_concurrent_requests; try again later"),
    ("--request_queue_size=3", 2, 3, "3 requests are waiting (--request_queue_size); try again later"),
])
def test_a_flood(start, flag, running, waiting, message):
    server = start(flag)
    expected = [alone(server, n) for n in range(waiting)]
    # What fills the queue must find the batch full, and full it stays until these leave.
    batch = [Client(server).send(body(100 + n, stream=False, tokens=90_000)) for n in range(running)]
    server.wait_metric("num_running_requests", running)
    clients = [Client(server).send(body(n, stream=n % 3 > 0)) for n in range(waiting)]
    server.wait_metric("num_waiting_requests", waiting)

    surplus = [Client(server) for _ in range(80)]
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    for i, client in enumerate(surplus):
        if i % 4:
            client.send(body(i % 7, stream=i % 2 > 0))
        else:
            client.send({**chat, "stream": i % 8 > 0}, "/v1/chat/completions")
    probe = Client(server)
    for i, client in enumerate(surplus):
        assert_refused(client, message)
        if i % 16 == 0:
            for path in ("/health", "/metrics", "/v1/models"):
                probe.http.request("GET", path)
                assert probe.answer()[0] == 200
    assert server.metric("num_concurrent_requests") == running + waiting
    assert server.metric("num_running_requests") == running
    assert server.metric("num_waiting_requests") == waiting
    limited = server.metric("server_request_total_limit")
    assert limited == (len(surplus) if "concurrent" in flag else 0)

    for client in batch:
        client.http.close()
    for n, client in enumerate(clients):
        assert client.tokens() == expected[n], f"request {n}"
    assert_idle(server)
    # Who was refused may come back, on the same connection.
    for i in (1, 2):
        assert surplus[i].send(body(i)).tokens() == expected[i]
    assert_idle(server)


def half(content):
    """A request whose body ends in the middle."""
    data = json.dumps(content).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data[: len(data) // 2]


def test_slow_clients_change_nothing_for_the_others(start):
    server = start("--max_seqs_per_batch=8", "--max_concurrent_requests=8")
    expected = [alone(server, n, tokens=100) for n in range(4)]
    silent = [server.connect() for _ in range(100)]
    for i, sock in enumerate(silent):
        sock.sendall((b"", b"POST /v1/comple", half(body(0)), b"GET /health HTTP/1.1\r\nHost: x\r\n")[i % 4])
    deaf = [server.connect(receive_buffer=4096) for _ in range(4)]
    for n, sock in enumerate(deaf):
        if n == 3:
            server.wait_metric("num_running_requests", 3)
        data = json.dumps(body(n, tokens=90_000 if n < 3 else 900)).encode()
        sock.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    # Half a request holds no place: the other four of eight are free.
    clients = [Client(server).send(body(n, tokens=100)) for n in range(4)]
    for n, client in enumerate(clients):
        assert client.tokens() == expected[n], f"request {n}"
    # A client that begins to read late has lost nothing either.
    sock = deaf.pop()
    response = http.client.HTTPResponse(sock)
    response.begin()
    assert response.status == 200 and response.read().endswith(b"data: [DONE]\n\n")
    for sock in silent + deaf:
        sock.close()
    assert_idle(server)


def test_slow_clients_are_cut_off(scripted):
    """The limits of http_server.h, shortened, with many of each kind at once."""
    server = scripted(header_timeout_s=0.6, body_timeout_s=0.8, stall_timeout_s=0.6, idle_timeout_s=0.7,
                      stream_queue_bytes=200_000)
    question = {"messages": [{"role": "user", "content": "repeat 400000 word"}], "stream": True}
    data = json.dumps(question).encode()
    whole = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data
    kinds = {"idle": b"", "header": b"POST /v1/comple", "body": half(question), "deaf": whole}
    socks = {kind: [server.connect(receive_buffer=4096) for _ in range(8)] for kind in kinds}
    for kind, start in kinds.items():
        for sock in socks[kind]:
            sock.sendall(start)
    # Others are served meanwhile.
    answer = Client(server).send({"messages": [{"role": "user", "content": "repeat 50 ab"}]}, "/v1/chat/completions")
    assert json.loads(answer.answer()[2])["choices"][0]["message"]["content"] == "ab" * 50
    for kind, expect in (("idle", b""), ("header", b"HTTP/1.1 408 "), ("body", b"HTTP/1.1 408 ")):
        for sock in socks[kind]:
            text = b""
            while piece := sock.recv(65536):
                text += piece
            assert text.startswith(expect) and bool(text) == bool(expect), (kind, text)
    server.wait_metric("request_status_total_cancelled", 8)
    for sock in socks["deaf"]:
        text = b""
        try:
            while piece := sock.recv(65536):
                text += piece
        except ConnectionResetError:
            pass
        assert text.startswith(b"HTTP/1.1 200 ") and b"[DONE]" not in text
    for name in ("num_running_requests", "num_concurrent_requests"):
        server.wait_metric(name, 0)
