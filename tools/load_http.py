#!/usr/bin/env python3
"""Many streams at a running server, over HTTP, and what came of every one.

  tools/load_http.py --url http://127.0.0.1:8010 --streams 100 --seconds 30 --aborts 0.1

Closed loop (--streams open at any time) or open loop (--rate Poisson arrivals per second). Requests are streamed
completions of token ids; a share begins with one of a few common prefixes; a share hangs up in the middle; the
canaries are asked alone first, and must answer the same under load. Everything random comes from --seed.

Faults: a request that fails or never ends, an answer that is too short or, of a canary, another one, and a server
that still counts requests or holds pages that the prefix cache doesn't when all is over. Exit code 1 if there are
any. Needs nothing but Python. Start the server with --max_concurrent_requests above the number of streams.
"""
import argparse
import asyncio
import json
import math
import random
import re
import sys
import time
import urllib.parse


def lengths(text):
    low, high = (int(part) for part in text.split(":"))
    if not 1 <= low <= high:
        raise argparse.ArgumentTypeError("LOW:HIGH with 1 <= LOW <= HIGH")
    return low, high


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8010")
    p.add_argument("--streams", type=int, default=100)
    p.add_argument("--rate", type=float, default=0)
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--aborts", type=float, default=0.1)
    p.add_argument("--prompt", type=lengths, default=(1, 300))
    p.add_argument("--answer", type=lengths, default=(1, 60))
    p.add_argument("--shared", type=float, default=0.5)
    p.add_argument("--prefixes", type=int, default=8)
    p.add_argument("--prefix_tokens", type=int, default=300)
    p.add_argument("--canaries", type=int, default=8)
    p.add_argument("--canary_share", type=float, default=0.1)
    p.add_argument("--vocab", type=int, default=4000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--patience", type=float, default=120)
    p.add_argument("--pid", type=int, help="of the server, to watch its memory")
    p.add_argument("--json", help="result file")
    return p.parse_args()


class Workload:
    """The n-th request as a pure function of the options and n."""

    def __init__(self, options):
        self.o = options

    def ids(self, kind, n, count):
        draw = random.Random(f"{self.o.seed} {kind} {n}")
        return [draw.randrange(self.o.vocab) for _ in range(count)]

    def body(self, kind, n):
        o, draw = self.o, random.Random(f"{self.o.seed} {kind} {n}")
        prompt = []
        if draw.random() < o.shared:
            prompt = self.ids("prefix", draw.randrange(o.prefixes), o.prefix_tokens)
        prompt += self.ids(kind, n, draw.randint(*o.prompt))
        body = {"prompt": prompt, "max_tokens": draw.randint(*o.answer), "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}, "temperature": 0}
        if draw.random() < 0.5:
            body.update(temperature=0.9, top_p=0.9, frequency_penalty=0.3, seed=draw.randrange(1 << 31))
        return body

    def request(self, n):
        """(body, canary or None, chunks after which the client hangs up or None)"""
        o, draw = self.o, random.Random(f"{self.o.seed} fate {n}")
        canary = draw.randrange(o.canaries) if o.canaries and draw.random() < o.canary_share else None
        body = self.body("request", n) if canary is None else self.body("canary", canary)
        abort = draw.randrange(body["max_tokens"]) if draw.random() < o.aborts else None
        return body, canary, abort


class Client:
    def __init__(self, options):
        url = urllib.parse.urlsplit(options.url)
        self.host, self.port = url.hostname, url.port or 80
        self.o = options
        self.first, self.gaps, self.faults = [], [], []
        self.counts = dict.fromkeys(("submitted", "finished", "aborted", "refused", "failed", "lost", "canaries"), 0)
        self.tokens = self.cached = self.prompt = 0

    async def open(self, method, path, body=None):
        reader, writer = await asyncio.open_connection(self.host, self.port)
        data = json.dumps(body).encode() if body is not None else b""
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        chunked = "transfer-encoding: chunked" in head.lower()
        return int(head.split()[1]), self.pieces(reader, chunked), writer

    @staticmethod
    async def pieces(reader, chunked):
        """Lines of the answer's body."""
        rest = b""
        while True:
            if chunked:
                size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
                data = await reader.readexactly(size)
                await reader.readexactly(2)
            else:
                data = await reader.read(65536)
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode()
        if rest:
            yield rest.decode()

    async def get(self, path):
        _, lines, writer = await self.open("GET", path)
        text = "\n".join([line async for line in lines])
        writer.close()
        return text

    async def ask(self, body, abort):
        """(status, text, usage or None); status 0: we hung up, text then says why the stream was not whole."""
        start = last = time.monotonic()
        status, lines, writer = await self.open("POST", "/v1/completions", body)
        try:
            if status != 200:
                return status, "\n".join([line async for line in lines]), None
            text, usage, chunks, done = "", None, 0, False
            if abort == 0:
                return 0, text, None
            async for line in lines:
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    done = True
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    return 500, json.dumps(event["error"]), None
                usage = event.get("usage") or usage
                if not event.get("choices"):
                    continue
                now = time.monotonic()
                (self.gaps if chunks else self.first).append(now - (last if chunks else start))
                last, chunks, text = now, chunks + 1, text + event["choices"][0]["text"]
                if abort is not None and chunks >= abort:
                    return 0, text, None
            return (200 if done else 500), text, usage
        finally:
            writer.close()

    def fault(self, text):
        self.faults.append(text)

    async def run_one(self, n, workload, known):
        body, canary, abort = workload.request(n)
        self.counts["submitted"] += 1
        try:
            status, text, usage = await self.ask(body, abort)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.counts["failed"] += 1
            return self.fault(f"request {n}: {error!r}")
        if status == 0:
            self.counts["aborted"] += 1
        elif status == 429:
            self.counts["refused"] += 1
        elif status != 200 or usage is None:
            self.counts["failed"] += 1
            self.fault(f"request {n}: status {status}: {text[:200]}")
        else:
            self.counts["finished"] += 1
            self.tokens += usage["completion_tokens"]
            self.prompt += usage["prompt_tokens"]
            self.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            if usage["completion_tokens"] != body["max_tokens"]:
                self.fault(f"request {n}: {usage['completion_tokens']} of {body['max_tokens']} tokens")
            if canary is not None:
                self.counts["canaries"] += 1
                if text != known[canary]:
                    self.fault(f"request {n}: canary {canary} has another answer")

    async def run(self):
        o, workload, known, tasks = self.o, Workload(self.o), [], set()
        try:
            await self.get("/health")
        except OSError as error:
            sys.exit(f"no server at {o.url}: {error}")
        for c in range(o.canaries):
            status, text, _ = await self.ask(workload.body("canary", c), None)
            if status != 200:
                sys.exit(f"canary {c}: status {status}: {text}")
            known.append(text)
        self.first.clear()
        self.gaps.clear()
        start = time.monotonic()
        n, memory, arrival, draw = 0, [], start, random.Random(f"{o.seed} arrivals")
        while (now := time.monotonic()) < start + o.seconds:
            while (arrival <= now) if o.rate else (len(tasks) < o.streams):
                tasks.add(asyncio.ensure_future(self.run_one(n, workload, known)))
                n += 1
                arrival += draw.expovariate(o.rate) if o.rate else 0
            memory.append(self.resident())
            _, tasks = await asyncio.wait(tasks, timeout=0.2 if not o.rate else max(0.001, arrival - now),
                                          return_when=asyncio.FIRST_COMPLETED) if tasks else (0, tasks)
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=o.patience)
        self.counts["lost"] = len(tasks)
        if tasks:
            self.fault(f"{len(tasks)} requests never ended")
        seconds = time.monotonic() - start
        await self.check_idle()
        return self.report(seconds, [m for m in memory if m])

    def resident(self):
        if not self.o.pid:
            return None
        with open(f"/proc/{self.o.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    async def check_idle(self):
        """The last aborts take a step; then nothing may be left."""
        deadline = time.monotonic() + 10
        while True:
            metrics = {}
            try:
                text = await self.get("/metrics")
            except (OSError, asyncio.IncompleteReadError) as error:
                return self.fault(f"no metrics: {error!r}")
            for name, family, value in re.findall(r'^(\w+)(?:\{family="(\w+)"\})? ([-+.\de]+)$', text, re.M):
                metrics[name, family] = float(value)
            busy = [f"{name} is {metrics[name, '']:g}"
                    for name in ("num_running_requests", "num_waiting_requests", "num_concurrent_requests")
                    if metrics.get((name, ""))]
            for family in ("full", "swa", "c128", "state"):
                used, cached = (metrics.get((name, family), math.nan)
                                for name in ("num_used_blocks", "num_blocks_in_prefix_cache"))
                if used != cached:
                    busy.append(f"{family}: {used:g} pages used, {cached:g} of them by the prefix cache")
            if not busy:
                return
            if time.monotonic() > deadline:
                return self.faults.extend(busy)
            await asyncio.sleep(0.1)

    def report(self, seconds, memory):
        def quantiles(values):
            values = sorted(values) or [0]
            return {f"p{q}": round(1e3 * values[min(len(values) - 1, q * len(values) // 100)], 3) for q in (50, 90, 99)}
        report = {"requests": self.counts, "seconds": round(seconds, 3),
                  "generated_tokens_per_second": round(self.tokens / seconds, 1),
                  "cached_share_of_prompts": round(self.cached / max(1, self.prompt), 3),
                  "ttft_milliseconds": quantiles(self.first), "inter_token_milliseconds": quantiles(self.gaps),
                  "faults": self.faults}
        if memory:
            third = len(memory) // 3
            report["resident_bytes"] = {"first": memory[0], "most_in_middle_third": max(memory[third:2 * third] or [0]),
                                        "most_in_last_third": max(memory[2 * third:])}
        return report


def main():
    options = parse_arguments()
    report = asyncio.run(Client(options).run())
    text = json.dumps(report, indent=2)
    print(text)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
