#!/usr/bin/env python3
"""Checks the rules of the house that a grep can check (docs/architecture.md), on all tracked files.

  tools/check_layers.py [ROOT]      lists what breaks a rule; exit code 1 if anything does
  tools/check_layers.py --self-test proves on made files that each rule catches its violation

Rules: folders include only what is below them; Boost, gflags, prometheus and CUDA have one place each;
no throw, FLAGS_ or thread_local under src/; no vendor #if outside backends; headers have #pragma once;
source files up to 800 lines (over 400 warns); no machine paths or registry hosts anywhere.
"""
import os
import re
import subprocess
import sys
import tempfile

# Folder of src/ -> what it may include besides itself.
BELOW = {"base": set(), "tensor": {"base"}, "text": {"base"}, "sample": {"base"}}
for name in ("ops", "weights", "comm", "cache"):
    BELOW[name] = {"tensor", "base"}
BELOW["model"] = {"cache", "comm", "weights", "ops", "tensor", "base"}
BELOW["spec"] = BELOW["model"] | {"model", "sample"}
BELOW["engine"] = BELOW["model"] | {"model", "spec", "sample", "text"}
BELOW["server"] = {"engine", "sample", "text", "base"}

# Include prefix in angle brackets -> regex of the files that may have it.
ONE_PLACE = {
    r"boost/": r"src/server/http_(server\.cc|session\.(cc|h))",
    r"gflags/": r"apps/",
    r"prometheus/": r"src/server/metrics\.cc",
    r"(cuda|cublas|cudnn|nccl|cub/|thrust/)": r"(src|tests|bench)/(ops/cuda/|comm/nccl\.cc|.*cuda)",
}
FORBIDDEN = {  # under src/, in code without comments and strings
    r"\bthrow\b": "throw (errors are values: base/error.h)",
    r"\bFLAGS_(?!gtest_)": "FLAGS_ (only apps/ reads flags)",
    r"\bthread_local\b": "thread_local",
}
VENDOR_IF = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|HIP|ROCM|NPU|__AVX|__SSE|__ARM|_NEON)")
BACKEND = re.compile(r"src/(ops/|comm/nccl)")
SOURCE = re.compile(r"\.(cc|h|cu|cuh|py|sh|js|html|cmake)$|CMakeLists\.txt$")
DATA = re.compile(r"\.(json|npz|npy|safetensors|xz|png|bin)$")
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(work|farm|root|home)/")
REGISTRY = re.compile(r"deb\.debian\.org|pypi\.org|python[h]osted|registry\.npmjs")
WARN_LINES, FAIL_LINES = 400, 800


def strip(line):
    """The line without strings and // comments."""
    return re.sub(r"//.*", "", re.sub(r'"(\\.|[^"\\])*"', '""', line))


def check_cpp(path, lines, errors):
    parts = path.split("/")
    folder = parts[1] if parts[0] == "src" and len(parts) > 2 else None
    if folder and folder not in BELOW:
        errors.append(f"{path}: folder src/{folder} has no place in the layers; add it to BELOW")
    if path.endswith(".h") and "#pragma once" not in lines:
        errors.append(f"{path}: no #pragma once")
    for number, line in enumerate(lines, 1):
        at = f"{path}:{number}"
        own = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if own and own.group(1).startswith("."):
            errors.append(f"{at}: includes are written from the src/ root")
        elif own and "/" in own.group(1) and folder in BELOW:
            target = own.group(1).split("/")[0]
            if target != folder and target not in BELOW[folder]:
                errors.append(f"{at}: {folder} must not include {own.group(1)}")
        system = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
        for prefix, place in ONE_PLACE.items():
            if system and re.match(prefix, system.group(1)) and not re.match(place, path):
                errors.append(f"{at}: <{system.group(1)}> belongs to {place}")
        if folder:
            code = strip(line)
            for pattern, what in FORBIDDEN.items():
                if re.search(pattern, code):
                    errors.append(f"{at}: {what}")
            if VENDOR_IF.match(line) and not BACKEND.match(path):
                errors.append(f"{at}: vendor #if outside a backend")


def check(root, paths):
    errors, warnings = [], []
    for path in sorted(paths):
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # binary data, or deleted in the working tree
        if re.match(r"(src|apps|tests|bench|fuzz)/.*\.(cc|h|cu|cuh)$", path):
            check_cpp(path, lines, errors)
        if SOURCE.search(path) and len(lines) > WARN_LINES:
            into = errors if len(lines) > FAIL_LINES else warnings
            into.append(f"{path}: {len(lines)} lines (soft limit {WARN_LINES}, hard {FAIL_LINES})")
        if not DATA.search(path):
            for number, line in enumerate(lines, 1):
                if MACHINE_PATH.search(line):
                    errors.append(f"{path}:{number}: path of one machine")
                if REGISTRY.search(line):
                    errors.append(f"{path}:{number}: host of a package registry")
    return errors, warnings


def self_test():
    cases = {  # file -> (content, what the error must say; None = no error)
        "src/base/ok.cc": ('#include "base/a.h"\n// a throw here is a comment\nauto s = "throw";\n', None),
        "src/engine/ok.cc": ('#include "model/m.h"\n#include "sample/s.h"\n', None),
        "src/server/http_server.cc": ("#include <boost/asio.hpp>\n", None),
        "apps/serve.cc": ('#include <gflags/gflags.h>\n#include "server/a.h"\nint x = FLAGS_port;\n', None),
        "src/ops/cpu.cc": ("#if defined(__AVX2__)\n#endif\n", None),
        "src/base/up.cc": ('#include "tensor/view.h"\n', "base must not include tensor/view.h"),
        "src/text/up.cc": ('#include "engine/request.h"\n', "text must not include"),
        "src/model/up.cc": ('#include "text/tokenizer.h"\n', "model must not include"),
        "src/sample/up.cc": ('#  include "tensor/view.h"\n', "sample must not include"),
        "src/misc/new.cc": ("", "has no place in the layers"),
        "src/base/relative.cc": ('#include "../base/a.h"\n', "from the src/ root"),
        "src/server/routes.cc": ("#include <boost/json.hpp>\n", "<boost/json.hpp> belongs to"),
        "src/engine/flag.cc": ("#include <gflags/gflags.h>\n", "<gflags/gflags.h> belongs to"),
        "src/engine/metric.cc": ("#include <prometheus/gauge.h>\n", "<prometheus/gauge.h> belongs"),
        "src/ops/gpu.cc": ("#include <cuda_runtime.h>\n", "<cuda_runtime.h> belongs to"),
        "src/text/throws.cc": ("void f() { throw 1; }\n", "throw (errors are values"),
        "src/text/flags.cc": ("int p = FLAGS_port;\n", "FLAGS_ (only apps/"),
        "src/text/local.cc": ("thread_local int x;\n", "thread_local"),
        "src/model/vendor.cc": ("#ifdef USE_CUDA\n#endif\n", "vendor #if outside"),
        "src/base/twice.h": ("int f();\n", "no #pragma once"),
        "src/base/long.cc": ("int x;\n" * 801, "801 lines"),
        "docs/setup.md": ("see /" + "home/me/model\n", "path of one machine"),
        "tools/get.sh": ("curl https://py" + "pi.org/simple\n", "host of a package registry"),
    }
    with tempfile.TemporaryDirectory() as root:
        for path, (text, _) in cases.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        for path, (_, expected) in cases.items():
            errors, _ = check(root, [path])
            ok = not errors if expected is None else len(errors) == 1 and expected in errors[0]
            if not ok:
                sys.exit(f"self-test: {path}: expected {expected!r}, got {errors}")
    print(f"check_layers: self-test of {len(cases)} cases passed")


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    root = sys.argv[1] if len(sys.argv) > 1 else here
    # Tracked files and new ones that git does not ignore.
    listed = subprocess.run(["git", "-C", root, "-c", f"safe.directory={root}", "ls-files", "-z",
                             "--cached", "--others", "--exclude-standard"],
                            stdout=subprocess.PIPE, check=True).stdout
    paths = {p for p in listed.decode().split("\0") if p}
    errors, warnings = check(root, paths)
    for line in warnings:
        print(f"warning: {line}")
    for line in errors:
        print(f"error: {line}")
    print(f"check_layers: {len(paths)} files, {len(errors)} errors, {len(warnings)} warnings")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
