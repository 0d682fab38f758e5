#!/usr/bin/env python3
"""Computes tests/data/mini_v4_bundled.safetensors: logits of the bundled model by Hugging Face transformers.

usage: make_bundled_golden.py [MODEL_DIR] [OUT.safetensors]     (needs torch, transformers, safetensors, tokenizers)

The checkpoint's FP8 and FP4 weights are dequantised to float32 first (exactly: scales are powers of two), so
what is compared is the model's mathematics in float32, without the rounding of activations. Equal scores in
the indexer's top-k are taken lowest index first, as the model's specification here says; transformers leaves
that to the kernel. Every sequence is run in float64 too, and the script stops if the two disagree.

Tensors of a sequence NAME: NAME.ids, NAME.rows, NAME.logits [rows, vocab], NAME.top_id [T, 4], NAME.top [T, 4].
"""
import glob
import json
import os
import random
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

TEXT = """The package tree grows a little every week. To see what is installed, ask the package manager for a
list; to find out which package a file came from, ask it for the owner of the file. A service that does not
start says why in its log, and the log says which line of its settings it could not read. Most settings have
a sensible value from the start: change one at a time, and write down what you changed. When two packages
want the same port, the second one to start will fail, and its message names the port. Backups are only as
good as the last time that somebody restored from them. Keep a copy on another disk, and try to read it back
before you need it. If a command asks for more rights than you expected, stop and read its manual first."""

FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
ROWS = {0, 1, 2, 3, 4, 7, 8, 126, 127, 128, 129, 130, 200, 254, 255, 256, 257}


def lowest_index_first(self, k, dim=-1, largest=True, sorted=True):
    values, indices = torch.sort(self, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


torch.Tensor.topk = lowest_index_first


def e8m0(scale):
    return torch.exp2(scale.view(torch.uint8).double() - 127).float()


def dequantise(tensors):
    out = {}
    for name, t in tensors.items():
        if name.startswith("mtp.") or name.endswith(".scale"):
            continue
        scale = tensors.get(name.removesuffix(".weight") + ".scale")
        if scale is None:
            out[name] = t
        elif t.dtype == torch.float8_e4m3fn:
            s = e8m0(scale).repeat_interleave(128, 0).repeat_interleave(128, 1)
            out[name] = t.float() * s[:t.shape[0], :t.shape[1]]
        else:
            codes = t.view(torch.uint8).int()
            values = FP4[torch.stack([codes & 15, codes >> 4], -1).flatten(1)]
            out[name] = values * e8m0(scale).repeat_interleave(32, 1)
    return out


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                experts_implementation="eager").eval()


@torch.no_grad()
def main():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    model_dir = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "models/mini-v4")
    target = sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "tests/data/mini_v4_bundled.safetensors")
    tensors = {}
    for path in sorted(glob.glob(os.path.join(model_dir, "*.safetensors"))):
        tensors.update(load_file(path))
    folder = tempfile.mkdtemp()
    save_file(dequantise(tensors), os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    config = json.load(open(os.path.join(model_dir, "config.json"), encoding="utf-8"))
    config.pop("quantization_config", None)
    config["torch_dtype"] = "float32"
    json.dump(config, open(os.path.join(folder, "config.json"), "w", encoding="utf-8"))
    model, exact = load(folder), load(folder).double()

    text = Tokenizer.from_file(os.path.join(model_dir, "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    chance = random.Random(7)
    sequences = {"text_9": text[:9], "text_131": text[:131], "text_200": [0] + text[3:202],
                 "random_260": [chance.randrange(config["vocab_size"]) for _ in range(260)]}
    out, worst = {}, 0.0
    for name, ids in sequences.items():
        y = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        y64 = exact(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        worst = max(worst, float(((y - y64).norm(dim=-1) / y64.norm(dim=-1)).max()))
        rows = sorted(p for p in ROWS | {len(ids) - 1} if p < len(ids))
        top = y.topk(4, dim=-1)
        out[f"{name}.ids"] = torch.tensor(ids, dtype=torch.int32)
        out[f"{name}.rows"] = torch.tensor(rows, dtype=torch.int32)
        out[f"{name}.logits"] = y[rows].contiguous()
        out[f"{name}.top_id"] = top.indices.int().contiguous()
        out[f"{name}.top"] = top.values.contiguous()
    print(f"float64 agrees to {worst:.1e}")
    if worst > 5e-5:
        sys.exit("a decision of this model hangs on rounding: take other sequences")
    save_file(out, target)


main()
