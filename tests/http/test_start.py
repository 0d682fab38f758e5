"""The program as scripts see it: texts, exit codes, readiness, signals, commands."""

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import numpy
import pytest

from conftest import BINARY, MODEL, Process, serve


def run(*arguments, **options):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("arguments, text", [
    (["--nonsense=1"], "ERROR: unknown command line flag 'nonsense'"),
    (["--port=abc"], "ERROR: illegal value 'abc' specified for int32 flag 'port'"),
    (["--port=99999999999"], "ERROR: illegal value '99999999999' specified for int32 flag 'port'"),
    (["--enable_graph=maybe"], "ERROR: illegal value 'maybe' specified for bool flag 'enable_graph'"),
    (["--port"], "ERROR: flag '--port' is missing its argument"),
    (["serve"], "ERROR: --model is required"),
    (["--model=/nonexistent"], "ERROR: model path does not exist: /nonexistent"),
    (["serve", f"--model={MODEL}", "--node_rank=3"], "ERROR: --node_rank=3 must be in [0, nnodes)"),
    (["serve", f"--model={MODEL}", "--nnodes=4", "--dp_size=3"],
     "ERROR: nnodes (4) must be divisible by dp_size*cp_size (3)"),
    (["serve", f"--model={MODEL}", "--block_size=64"], "ERROR: DeepSeek-V4 requires --block_size=128"),
    (["serve", f"--model={MODEL}", "--num_speculative_tokens=3"],
     "ERROR: --num_speculative_tokens > 0 requires --draft_model"),
    (["serve", f"--model={MODEL}", "--port=0", "--speculative_algorithm=Suffix", "--num_speculative_tokens=200"],
     "ERROR: verify width 201 exceeds compressor ring capacity 122: c4_state keeps 128 rows, 8 of them history; "
     "lower --num_speculative_tokens to 121"),
    (["serve", f"--model={MODEL}", "--host=203.0.113.1"], "ERROR: --host=203.0.113.1"),
    (["chat", f"--model={MODEL}", "--temperature=3"], "ERROR: --temperature=3 must be in [0, 2]"),
    (["generate", f"--model={MODEL}", "--prompt=hi", "--max_tokens=-1"],
     "ERROR: --max_tokens=-1 must be at least 0"),
    (["nonsense"], "ERROR: unknown command 'nonsense'"),
    (["serve", "extra", f"--model={MODEL}"], "ERROR: unexpected argument 'extra'"),
])
def test_faults(arguments, text):
    result = run(*arguments)
    assert result.returncode == 1
    assert text in result.stderr, result.stderr
    assert len([l for l in result.stderr.splitlines() if l.startswith("ERROR:")]) == 1


def test_fault_of_the_model(tmp_path):
    result = run("serve", f"--model={tmp_path}")
    assert result.returncode == 1 and f"ERROR: no config.json in {tmp_path}" in result.stderr
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    shutil.copy(MODEL / "tokenizer.json", tmp_path)
    result = run("serve", f"--model={tmp_path}", "--port=0")
    assert result.returncode == 1 and "unsupported model_type 'llama'" in result.stderr


def test_unknown_isa():
    result = run("serve", f"--model={MODEL}", "--port=0", env={**os.environ, "FATHOM_ISA": "z80"})
    assert result.returncode == 1 and "z80" in result.stderr


def test_address_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("serve", f"--model={MODEL}", "--host=127.0.0.1", f"--port={port}")
    assert result.returncode == 1
    assert f"ERROR: --port={port}: address in use" in result.stderr


def test_help_and_version():
    for flag in ("--help", "-h", "help"):
        result = run(flag)
        assert result.returncode == 0 and "--model" in result.stdout and "Scheduler" in result.stdout
    result = run("--version")
    assert result.returncode == 0 and re.match(r"fathom \d+\.\d+\.\d+ \(backends: cpu\)", result.stdout)


def test_readiness_and_launch_script_flags(tmp_path):
    """Flags only, gflags spellings, flags of other machines: at most warnings."""
    flags = tmp_path / "flags"
    flags.write_text("--max_seqs_per_batch=8\n")
    process = Process(
        [BINARY, "-model-id", "ds", "--model", str(MODEL), "--port", "0", "--host", "127.0.0.1", "--devices=npu:0",
         "--master_node_addr=127.0.0.1:19888", "--nnodes=1", "--node_rank=0", "--max_memory_utilization=0.5",
         "--max_tokens_per_batch=2048", "--block_size=128", "--communication_backend=hccl", "--noenable_graph",
         "--enable_prefix_cache=false", "--enable_chunked_prefill", "--enable_schedule_overlap=false",
         "--tool_call_parser=deepseekv4", "--npu_kernel_backend=ATB", "--enable_multi_stream_parallel",
         f"--flagfile={flags}"],
        r"Brpc Server Started on port (\d+)").wait_ready()
    assert httpx.get(process.url + "/v1/models").json()["data"][0]["id"] == "ds"
    assert process.stop() == 0
    text = "\n".join(process.lines)
    assert text.count("Brpc Server Started") == 1
    assert text.count("Application startup complete.") == 1
    assert text.count("no effect on backend cpu") == 1
    assert "--npu_kernel_backend" in text and "--enable_multi_stream_parallel" in text


def test_refused_until_the_model_is_loaded():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = serve(f"--port={port}")
    refused = answered = False
    while process.process.poll() is None and not answered:
        ready = process.port is not None
        with socket.socket() as sock:
            answered = sock.connect_ex(("127.0.0.1", port)) == 0
        if not answered:
            refused = True
            assert not ready
    process.wait_ready()
    assert refused and answered
    assert process.stop() == 0


def test_sigterm_drains():
    process = serve("--model_id=m").wait_ready()
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000, "n": 32,
            "ignore_eos": True, "stream": True}
    with httpx.stream("POST", process.url + "/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 30
        while (health := httpx.get(process.url + "/health")).status_code != 503:
            assert time.monotonic() < end
        refused = httpx.post(process.url + "/v1/chat/completions", json={**body, "stream": False})
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "service_unavailable_error"
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert sum('"content"' in line for line in rest) > 100
    assert process.process.wait(20) == 0


def test_drain_has_a_limit():
    process = serve("--drain_timeout_s=0.5").wait_ready()
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4000, "n": 32,
            "ignore_eos": True, "stream": True}
    with httpx.stream("POST", process.url + "/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert process.process.wait(20) == 0
    # The server is what left, not the client.
    errors = [json.loads(line[6:])["error"] for line in rest if line.startswith('data: {"error"')]
    assert [e["type"] for e in errors] == ["service_unavailable_error"], errors


def test_second_sigterm_ends_at_once():
    process = serve("--drain_timeout_s=60").wait_ready()
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4000, "n": 32,
            "ignore_eos": True, "stream": True}
    with pytest.raises(httpx.HTTPError):
        with httpx.stream("POST", process.url + "/v1/chat/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.process.send_signal(signal.SIGTERM)
            process.wait_line("draining")
            process.process.send_signal(signal.SIGTERM)
            list(lines)
    assert process.process.wait(30) == 1  # of the 60 that the first would have taken


def test_a_long_step_makes_health_fail_until_it_ends():
    process = serve("--step_watchdog_s=0.05", "--max_model_len=40000", "--max_tokens_per_batch=40000",
                    "--max_tokens_per_chunk_for_prefill=40000").wait_ready()
    assert httpx.get(process.url + "/health").status_code == 200
    answers = []
    body = {"prompt": [n * 31 % 4000 for n in range(8000)], "max_tokens": 1}
    asker = threading.Thread(target=lambda: answers.append(
        httpx.post(process.url + "/v1/completions", json=body, timeout=300)))
    asker.start()
    seen = set()
    while asker.is_alive():
        seen.add(httpx.get(process.url + "/health").status_code)
        time.sleep(0.01)
    assert answers[0].status_code == 200
    assert seen >= {503} and seen <= {200, 503}
    assert httpx.get(process.url + "/health").status_code == 200
    assert process.stop() == 0


def test_api_key():
    process = serve("--api_key=secret").wait_ready()
    assert httpx.get(process.url + "/v1/models").status_code == 401
    assert httpx.get(process.url + "/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
    assert httpx.get(process.url + "/health").status_code == 200
    assert process.stop() == 0


def test_dump_config(tmp_path):
    out = tmp_path / "config.json"
    process = serve("--enable_dump_config_json", f"--dump_config_json_file={out}", "--max_seqs_per_batch=3").wait_ready()
    assert process.stop() == 0
    assert json.loads(out.read_text())["max_seqs_per_batch"] == 3


def test_score(tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text("[0, 5, 7, 9, 11, 300]")
    out = tmp_path / "logits.npy"
    result = run("score", f"--model={MODEL}", f"--ids={ids}", f"--out={out}")
    assert result.returncode == 0, result.stderr
    logits = numpy.load(out)
    assert logits.shape == (6, 4096) and logits.dtype == numpy.float32 and numpy.isfinite(logits).all()
    ids.write_text("[[0, 5, 7, 9, 11, 300], [1, 2]]")
    out = tmp_path / "several"
    assert run("score", f"--model={MODEL}", f"--ids={ids}", f"--out={out}").returncode == 0
    assert (numpy.load(out / "0.npy") == logits).all()
    assert numpy.load(out / "1.npy").shape == (2, 4096)
    for bad in ("[]", "{}", '["a"]', "[1, [2]]", "[4096]", "[-1]", "[", "[[]]"):
        ids.write_text(bad)
        result = run("score", f"--model={MODEL}", f"--ids={ids}", f"--out={tmp_path / 'x'}")
        assert result.returncode == 1 and result.stderr.splitlines()[-1].startswith("ERROR: "), (bad, result.stderr)


def test_tokenize_and_back():
    text = "Install apt now! 12345 é"
    result = run("tokenize", f"--model={MODEL}", f"--text={text}")
    assert result.returncode == 0, result.stderr
    ids = json.loads(result.stdout)
    back = run("tokenize", f"--tokenizer={MODEL / 'tokenizer.json'}", "--text", json.dumps(ids), "--decode")
    assert back.stdout == text
    empty = run("tokenize", f"--model={MODEL}", "--text=")
    assert empty.returncode == 0 and json.loads(empty.stdout) == []
    assert run("tokenize", f"--model={MODEL}").returncode == 1
    assert run("tokenize", f"--model={MODEL}", "--text=[99999]", "--decode").returncode == 1


def test_render(tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}], "thinking": False}))
    result = run("render", f"--model={MODEL}", f"--messages={file}")
    assert result.stdout == "<｜begin▁of▁sentence｜><｜User｜>hello<｜Assistant｜></think>"
    file.write_text(json.dumps([{"role": "user", "content": "hello"}]))
    assert run("render", "--chat_encoding=v4", f"--messages={file}").stdout.endswith("<think>")
    file.write_text("{}")
    assert run("render", f"--model={MODEL}", f"--messages={file}").returncode == 1


def test_render_vectors(tmp_path):
    """The request objects of encode_chat.json, as far as no instruction block is in the prompt."""
    vectors = json.loads((MODEL.parents[1] / "tests/data/vectors/encode_chat.json").read_text())["cases"]
    cases = [c for c in vectors if c["model"] == "v4" and "${" not in c["prompt"]]
    assert len(cases) > 5
    file = tmp_path / "request.json"
    for case in cases[:12]:
        file.write_text(json.dumps(case["request"]))
        assert run("render", "--chat_encoding=v4", f"--messages={file}").stdout == case["prompt"], case["id"]


def test_inspect_and_quantize_faults():
    result = run("inspect", MODEL)
    assert result.returncode == 0 and "layer" in result.stdout.lower()
    assert run("inspect").returncode == 1
    assert run("inspect", "/nonexistent").returncode == 1
    assert run("quantize", "--input=/nonexistent", "--output=/tmp/x").returncode == 1


def test_generate(tmp_path):
    arguments = ["generate", f"--model={MODEL}", "--prompt=What is apt?", "--max_tokens=12", "--temperature=0",
                 '--default_chat_template_kwargs={"thinking": false}']
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() and re.search(r"answer: \d+ tokens, [\d.]+ tok/s", result.stderr)
    assert run(*arguments).stdout == result.stdout
    file = tmp_path / "m.json"
    file.write_text(json.dumps([{"role": "user", "content": "What is apt?"}]))
    same = run("generate", f"--model={MODEL}", f"--messages={file}", *arguments[3:])
    assert same.stdout == result.stdout
    assert run("generate", f"--model={MODEL}").returncode == 1


def test_reasoning_is_set_apart(tmp_path):
    arguments = ["generate", f"--model={MODEL}", "--prompt=What is apt?", "--temperature=0"]
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    reasoning, answer = result.stdout.split("\n\n", 1)
    assert reasoning.strip() and answer.strip()
    assert "</think>" not in result.stdout and "\033" not in result.stdout
    # Cut off in the middle of its reasoning.
    short = run(*arguments, "--max_tokens=3")
    assert short.returncode == 0 and reasoning.startswith(short.stdout.strip())


@pytest.mark.parametrize("command", [
    ["generate", f"--model={MODEL}", "--prompt=hi", "--max_tokens=3"],
    ["tokenize", f"--model={MODEL}", "--text=hi"],
    ["tokenize", f"--model={MODEL}", "--text=[67]", "--decode"],
    ["render", f"--model={MODEL}", "--messages"],
    ["inspect", MODEL],
    ["--help"],
    ["--version"],
])
def test_lost_output_is_no_success(command, tmp_path):
    if command[0] == "render":
        file = tmp_path / "chat.json"
        file.write_text('[{"role": "user", "content": "hello"}]')
        command = [*command, file]
    with open("/dev/full", "w") as full:
        result = subprocess.run([BINARY, *map(str, command)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1
    assert [l for l in result.stderr.splitlines() if l.startswith("ERROR:")], result.stderr


def test_a_closed_pipe_ends_a_command():
    with subprocess.Popen([BINARY, "generate", f"--model={MODEL}", "--prompt=hi"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(20) != 0


def test_bad_utf8_of_the_command_line_is_refused():
    for command in (["--prompt"], ["--raw", "--prompt"]):
        result = run("generate", f"--model={MODEL}", *command, b"a\xff".decode("utf8", "surrogateescape"))
        assert result.returncode == 1 and "UTF-8" in result.stderr, result.stderr
    result = subprocess.run([BINARY, "chat", f"--model={MODEL}"], input=b"a\xff\n", capture_output=True, timeout=60)
    assert b"not valid UTF-8" in result.stderr and b"tokens]" not in result.stdout


class Terminal:
    """fathom chat on a pseudo terminal."""

    def __init__(self, *flags, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(environment, TERM="dumb")
            os.execv(BINARY, [BINARY, "chat", f"--model={MODEL}", *flags,
                              '--default_chat_template_kwargs={"thinking": false}'])
        self.text = ""
        self.seen = 0
        self.ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while data := os.read(self.fd, 4096):
                self.text += data.decode(errors="replace")
        except OSError:
            pass
        self.ended.set()

    def send(self, data):
        os.write(self.fd, data)

    def wait(self, pattern, seconds=100):
        """The pattern, behind what was waited for before."""
        end = time.monotonic() + seconds
        while not (match := re.compile(pattern).search(self.text, self.seen)):
            assert time.monotonic() < end and not self.ended.is_set(), repr(self.text[-2000:])
            time.sleep(0.02)
        self.seen = match.end()
        return match

    def type(self, line):
        """Types what is seen on the screen; again where a late signal dropped a part of it."""
        for _ in range(20):
            self.send(b"\x15" + line.encode())  # Ctrl-U: an empty line
            try:
                return self.wait(re.escape(line), seconds=2)
            except AssertionError:
                pass
        raise AssertionError(f"{line} was not shown: {self.text[-2000:]!r}")

    def enter(self, line, answer):
        self.type(line)
        self.send(b"\r")
        self.wait(answer)

    def quit(self):
        self.type("/quit")
        self.send(b"\r")
        assert self.ended.wait(100), self.text
        _, status = os.waitpid(self.pid, 0)
        assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, repr(self.text[-2000:])


PROMPT, TOKENS = "(?m)^> ", r"\[\d+ \+ (\d+) tokens\](.*\r\n)+> "


def test_chat_in_a_terminal():
    terminal = Terminal(LC_ALL="C")
    terminal.wait(PROMPT)
    terminal.enter("What is apt? \u00e9\u6f22", TOKENS)
    terminal.enter("/think on", PROMPT)
    # Ctrl-C drops the line that is being typed, and nothing else.
    terminal.type("/quit")
    terminal.send(b"\x03")
    terminal.wait(PROMPT)
    terminal.enter("/clear", PROMPT)
    terminal.quit()


# Noise, most often to the end of the context, but for a signal.
ENDLESS = "--temperature=2"


def test_a_signal_ends_an_answer_and_not_the_chat():
    terminal = Terminal(ENDLESS)
    terminal.wait(PROMPT)
    terminal.enter("hello", r"\n.")
    terminal.send(b"\x03")
    assert int(terminal.wait(TOKENS).group(1)) < 4000
    terminal.quit()


@pytest.mark.parametrize("answering", [False, True])
def test_sigterm_ends_a_chat(answering):
    terminal = Terminal(ENDLESS)
    terminal.wait(PROMPT)
    if answering:
        terminal.enter("hello", r"\n.")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.ended.wait(100), terminal.text
    _, status = os.waitpid(terminal.pid, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, repr(terminal.text[-2000:])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_chat_that_reads_a_pipe(number):
    with subprocess.Popen([BINARY, "chat", f"--model={MODEL}", "--max_tokens=5"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("hello\n")
        process.stdin.flush()
        while "tokens]" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(100) == 0


def test_a_signal_loses_no_output_of_a_chat():
    terminal = Terminal(ENDLESS)
    terminal.wait(PROMPT)
    terminal.enter("hello", r"\n.")
    # Ctrl-S: the program waits within a write, and there the signal finds it.
    terminal.send(b"\x13")
    time.sleep(0.3)
    os.kill(terminal.pid, signal.SIGINT)
    time.sleep(0.1)
    terminal.send(b"\x11")
    assert int(terminal.wait(TOKENS).group(1)) < 4000
    terminal.quit()


def test_chat_reads_a_pipe():
    result = run("chat", f"--model={MODEL}", "--max_tokens=5", input="What is apt?\n/quit\n")
    assert result.returncode == 0 and "tokens]" in result.stdout and "\033" not in result.stdout
