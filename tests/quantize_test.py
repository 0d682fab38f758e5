"""`fathom quantize` as a user runs it: peak memory, a full disk, a kill, calibration, the cost of W8A8."""

import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import time

import pytest

BINARY = os.environ["FATHOM_BINARY"]
ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "mini-v4"
ORIGINAL = ROOT.parent / "shared" / "mini_model" / "checkpoint"
CALIBRATION = ROOT / "tests" / "data" / "calibration_text.txt"
WEIGHTS = "model-00001-of-00001.safetensors"
LAYERS = 72


def quantize(source, output, form, *more, **options):
    command = [BINARY, "quantize", "--input", str(source), "--output", str(output), "--format", form, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


def must(*arguments, **options):
    done = quantize(*arguments, **options)
    assert done.returncode == 0, done.stderr[-500:]


def header_of(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length


@pytest.fixture(scope="module")
def many_layers(tmp_path_factory):
    """The bundled model in bf16 with its layers repeated: about 350 MB, the largest tensor 4 MiB."""
    small = tmp_path_factory.mktemp("small") / "bf16"
    must(MODEL, small, "bf16")
    header, start = header_of(small / WEIGHTS)
    data = (small / WEIGHTS).read_bytes()[start:]
    config = json.loads((small / "config.json").read_text())
    layers, ratios = config["num_hidden_layers"], config["compress_ratios"]
    source = list(range(layers)) + [1 + (i - 1) % (layers - 1) for i in range(layers, LAYERS)]
    config["num_hidden_layers"] = LAYERS
    config["compress_ratios"] = [ratios[i] for i in source] + ratios[layers:]
    tensors = []  # (name, the entry it copies)
    for name, entry in header.items():
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            tensors += [(f"layers.{i}.{rest}", entry) for i in range(LAYERS) if source[i] == int(layer)]
        elif name != "__metadata__":
            tensors.append((name, entry))
    written, offset = {}, 0
    for name, entry in tensors:
        size = entry["data_offsets"][1] - entry["data_offsets"][0]
        written[name] = {**entry, "data_offsets": [offset, offset + size]}
        offset += size
    big = tmp_path_factory.mktemp("big") / "bf16"
    big.mkdir()
    (big / "config.json").write_text(json.dumps(config))
    (big / "tokenizer.json").write_bytes((small / "tokenizer.json").read_bytes())
    text = json.dumps(written).encode()
    text += b" " * (-len(text) % 8)
    with open(big / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, entry in tensors:
            file.write(data[entry["data_offsets"][0] : entry["data_offsets"][1]])
    largest = max(e["data_offsets"][1] - e["data_offsets"][0] for e in written.values())
    assert offset > 300 << 20 and largest < 8 << 20
    return big, largest


# Starts a program and prints its peak of resident memory in KiB. A process of its own: what a child was
# forked from counts as its memory, and the process that runs the tests is a large one.
PEAK = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("rotate", [(), ("--rotate", "quarot")], ids=["plain", "quarot"])
@pytest.mark.parametrize("form", ["official", "w8a8", "w4a8", "bf16", "f32"])
def test_peak_memory(many_layers, tmp_path, form, rotate):
    source, largest = many_layers
    command = [BINARY, "quantize", "--input", source, "--output", tmp_path / "out", "--format", form, *rotate]
    done = subprocess.run([sys.executable, "-c", PEAK, *command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-500:]
    peak, bound = int(done.stdout) << 10, (64 << 20) + 3 * largest
    print(f"peak {peak >> 20} MiB, bound {bound >> 20} MiB")
    assert peak <= bound


def peak_of(*arguments):
    command = [sys.executable, "-c", PEAK, BINARY, "quantize", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-500:]
    return int(done.stdout) << 10


def test_peak_memory_of_many_small_tensors(tmp_path):
    """135,000 tensors of 2 KB: what is kept of each must stay small, too (docs/formats.md)."""
    config = json.loads((MODEL / "config.json").read_text())
    config.update(num_hidden_layers=60, n_routed_experts=750, compress_ratios=[0] * 60)
    big = tmp_path / "big"
    big.mkdir()
    (big / "config.json").write_text(json.dumps(config))
    names = [
        f"layers.{layer}.ffn.experts.{expert}.w{part}.weight"
        for layer in range(60)
        for expert in range(750)
        for part in (1, 2, 3)
    ]
    entries = (
        f'"{name}":{{"dtype":"BF16","shape":[32,32],"data_offsets":[{2048 * i},{2048 * i + 2048}]}}'
        for i, name in enumerate(names)
    )
    text = ("{" + ",".join(entries) + "}").encode()
    text += b" " * (-len(text) % 8)
    layer = b"\x80\x3f\x00\xbf" * (512 * 750 * 3)
    with open(big / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(60):
            file.write(layer)
    bound = (64 << 20) + 3 * 2048
    # The second makes 540,000 tensors; the third reads 270,000 and an index.
    for source, form in [("big", "official"), ("big", "w4a8"), ("official", "bf16")]:
        peak = peak_of("--input", tmp_path / source, "--output", tmp_path / form, "--format", form)
        print(f"{source} to {form}: peak {peak >> 20} MiB, bound {bound >> 20} MiB")
        assert peak <= bound
    header, _ = header_of(tmp_path / "bf16" / WEIGHTS)
    assert set(header) - {"__metadata__"} == set(names)


def test_a_full_disk(tmp_path):
    """A limit on the size of a file fails a write in the middle, as a full disk does."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    for form in ["official", "w8a8", "w4a8", "bf16", "f32"]:
        done = quantize(MODEL, tmp_path / "out", form, preexec_fn=limit, restore_signals=False)
        assert done.returncode == 1, (form, done.stderr)
        assert "free disk space and run again" in done.stderr and "safetensors" in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_a_killed_run(many_layers, tmp_path):
    source, _ = many_layers
    out, part = tmp_path / "out", tmp_path / "out.part"
    command = [BINARY, "quantize", "--input", source, "--output", out, "--format", "w8a8"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not any(f.stat().st_size > 0 and "safetensors" in f.name for f in part.glob("*")):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.001)
    child.send_signal(signal.SIGSTOP)
    second = quantize(source, out, "w8a8")
    assert second.returncode == 1 and "another run is writing to" in second.stderr
    assert child.poll() is None, "it ended before it could be killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert part.exists() and not out.exists()
    for half in (out, part):
        assert subprocess.run([BINARY, "inspect", half], capture_output=True).returncode == 1
    must(source, out, "w8a8")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert subprocess.run([BINARY, "inspect", out], capture_output=True).returncode == 0


def evaluate(model, reference, directory):
    command = [BINARY, "eval", "--model", model, "--reference", reference, "--out", directory]
    command += ["--text", ROOT / "tests" / "data" / "eval_text.txt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-500:]
    return json.loads((directory / "eval.json").read_text())["kl"]["mean"]


@pytest.mark.skipif(not ORIGINAL.exists(), reason="missing ../shared/mini_model/checkpoint")
def test_w8a8_costs_less_than_a_third_of_official(tmp_path):
    source = ORIGINAL
    must(source, tmp_path / "official", "official")
    official = evaluate(tmp_path / "official", source, tmp_path / "a")
    assert official > 1e-4
    for name, more in {"dynamic": (), "static": ("--calibration", str(CALIBRATION))}.items():
        must(source, tmp_path / name, "w8a8", *more)
        description = json.loads((tmp_path / name / "quant_model_description.json").read_text())
        assert ("W8A8" in description.values()) == (name == "static")
        assert evaluate(tmp_path / name, source, tmp_path / ("of_" + name)) < official / 3


def test_bad_calibration_texts(tmp_path):
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes(b"caf\xe9 " * 50)
    for name in ["none", "empty", "latin", "."]:
        done = quantize(MODEL, tmp_path / "out", "w8a8", "--calibration", str(tmp_path / name))
        assert done.returncode == 1 and str(tmp_path) in done.stderr, (name, done.stderr)
        assert done.stderr.count("ERROR") == 1 and not (tmp_path / "out").exists()
    done = quantize(MODEL, tmp_path / "out", "bf16", "--calibration", str(CALIBRATION))
    assert done.returncode == 1 and "--calibration is for" in done.stderr
