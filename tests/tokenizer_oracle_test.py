"""`fathom tokenize` against PyPI's `tokenizers`, the implementation that users compare with.

Texts are random but restricted to characters of Unicode 3.2: PCRE2 10.42 knows Unicode 14, `tokenizers` a
newer one, and they class newer characters differently. Run with pytest; FATHOM_BINARY names the program
(default build/fathom). Skipped where `tokenizers`, the program or ../shared/tokenizers is missing.
"""

import json
import lzma
import os
import pathlib
import random
import subprocess
import unicodedata

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="needs PyPI's tokenizers")

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = pathlib.Path(os.environ.get("FATHOM_BINARY", ROOT / "build" / "fathom"))
SHARED = ROOT.parent / "shared" / "tokenizers"
MODELS = ["mini-v4", "deepseek_v3", "deepseek_v4"]

OLD = unicodedata.ucd_3_2_0
CHARACTERS = [
    chr(c)
    for c in range(0x110000)
    if not 0xD800 <= c <= 0xDFFF and OLD.category(chr(c)) != "Cn"
]
ASCII = [chr(c) for c in range(128)]
MARKERS = ["<think>", "</think>", "<｜User｜>", "<｜", "｜>", "｜DSML｜", "<", "<|EOT|>", "<｜▁pad▁｜>"]


def texts(seed):
    """Texts of each kind that has its own way through the splits or the merges."""
    rng = random.Random(seed)

    def draw(pool, count):
        return "".join(rng.choice(pool) for _ in range(count))

    yield ""
    yield draw(ASCII, 5000)
    yield draw(CHARACTERS, 5000)
    yield draw(list(" \n\t\r\u00a0\u3000ab1,.!'"), 5000)
    yield "".join(rng.choice([rng.choice(ASCII), rng.choice(CHARACTERS), rng.choice(MARKERS)]) for _ in range(5000))
    yield "".join(rng.choice(" \na=0漢é") * rng.randint(1, 300) for _ in range(50))
    yield (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else draw(ASCII, 100)


@pytest.fixture(scope="module", params=MODELS)
def tokenizer_file(request, tmp_path_factory):
    if not BINARY.exists():
        pytest.skip(f"needs {BINARY}; run make build, or set FATHOM_BINARY")
    if request.param == "mini-v4":
        return ROOT / "models" / "mini-v4" / "tokenizer.json"
    packed = SHARED / f"{request.param}_tokenizer.json.xz"
    if not packed.exists():
        pytest.skip(f"needs shared/tokenizers/{packed.name}")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path


def run(*arguments):
    return subprocess.run([BINARY, "tokenize", *arguments], check=True, capture_output=True).stdout


@pytest.mark.parametrize("seed", range(3))
def test_same_ids_and_same_text_back(tokenizer_file, tmp_path, seed):
    oracle = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    for number, text in enumerate(texts(seed)):
        file = tmp_path / f"{number}.txt"
        file.write_bytes(text.encode())
        ids = json.loads(run("--tokenizer", tokenizer_file, "--file", file))
        assert ids == oracle.encode(text, add_special_tokens=False).ids, f"text {number} of seed {seed}"

        file.write_text(json.dumps(ids))
        back = run("--tokenizer", tokenizer_file, "--file", file, "--decode")
        assert back == text.encode(), f"text {number} of seed {seed}"
