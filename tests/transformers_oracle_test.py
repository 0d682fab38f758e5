"""Checkpoints that `fathom quantize` wrote, loaded by Hugging Face transformers, an implementation nobody here wrote.

The bundled model (official FP8 and FP4) is written as bf16 and from there as official again; transformers loads
both and computes in float32, `fathom score --compute_dtype=float32` as well. Both leave out the rounding of
activations and caches. Rows agree to 1e-4 relative (2-norm of the difference over the 2-norm); an honest float32
implementation needs a tenth of that. Run with pytest; FATHOM_BINARY names the program (default build/fathom).
Skipped where torch, transformers, accelerate or the program is missing.
"""

import json
import os
import pathlib
import random
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = pathlib.Path(os.environ.get("FATHOM_BINARY", ROOT / "build" / "fathom"))
MODEL = ROOT / "models" / "mini-v4"
TEXT = ROOT / "tests" / "data" / "eval_text.txt"
VOCABULARY = 4096
BOUND = 1e-4


def fathom(*arguments):
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def packages():
    """numpy, torch and transformers. Imported here: a module that skips as a whole counts as a failed run."""
    names = ("numpy", "torch", "transformers", "accelerate")
    return [pytest.importorskip(name, reason=f"needs PyPI's {name}") for name in names][:3]


@pytest.fixture
def ties(packages, monkeypatch):
    """Tensor.topk with equal values in the order of their index, which torch leaves to its kernels."""
    torch = packages[1]

    def top_lowest_first(self, k, dim=-1, largest=True, sorted=True):  # the names of torch
        values, indices = torch.sort(self, dim=dim, descending=largest, stable=True)
        return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

    monkeypatch.setattr(torch.Tensor, "topk", top_lowest_first)


@pytest.fixture(scope="module")
def checkpoints(packages, tmp_path_factory):
    if not BINARY.exists():
        pytest.skip(f"needs {BINARY}; run make build, or set FATHOM_BINARY")
    folder = tmp_path_factory.mktemp("checkpoints")
    fathom("quantize", f"--input={MODEL}", f"--output={folder / 'bf16'}", "--format=bf16")
    fathom("quantize", f"--input={folder / 'bf16'}", f"--output={folder / 'official'}", "--format=official")
    return folder


@pytest.fixture(scope="module")
def sequences(checkpoints):
    rng = random.Random(5)
    text = json.loads(fathom("tokenize", f"--model={MODEL}", f"--file={TEXT}"))
    return [[0, *text], [rng.randrange(VOCABULARY) for _ in range(300)], [0], [0, *text[:130]]]


@pytest.mark.parametrize("form", ["bf16", "official"])
def test_logits_agree(form, packages, ties, checkpoints, sequences, tmp_path):
    np, torch, transformers = packages
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(sequences))
    fathom("score", f"--model={checkpoints / form}", f"--ids={ids}", f"--out={tmp_path / 'out'}",
           "--compute_dtype=float32", "--simulate_quantization=off")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoints / form, dtype=torch.float32, attn_implementation="eager").eval()
    assert type(model).__name__ == "DeepseekV4ForCausalLM"
    rows = 0
    for number, sequence in enumerate(sequences):
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0].float().numpy()
        actual = np.load(tmp_path / "out" / f"{number}.npy")
        assert actual.shape == expected.shape == (len(sequence), VOCABULARY)
        error = np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert error.max() < BOUND, f"sequence {number}, row {error.argmax()}: {error.max():.2e}"
        best = expected.max(axis=1)
        chosen = expected[np.arange(len(sequence)), actual.argmax(axis=1)]
        assert (best - chosen).max() < 1e-3  # the same top token, but for ties
        rows += len(sequence)
        print(f"{form} {number}: {len(sequence)} rows, worst {error.max():.1e}")
    assert rows > 1000
