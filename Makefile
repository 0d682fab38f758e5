# The front of the project. `make serve` answers on port 8010; `make test` proves it. Details: README.md.
PORT ?= 8010
MODEL ?= models/mini-v4
SERVE_FLAGS ?= --default_chat_template_kwargs='{"thinking": false}'
FUZZ_SECONDS ?= 20
SOURCES = $(shell git ls-files 'src/*.cc' 'src/*.h' 'apps/*.cc' 'apps/*.h' 'tests/*.cc' 'tests/*.h' 'bench/*.cc' 'bench/*.h' 'fuzz/*.cc')

.PHONY: help setup build serve test bench format format-check tidy fuzz layers clean

help:
	@echo "make setup    install missing Debian packages (says which)"
	@echo "make build    build build/fathom"
	@echo "make serve    serve $(MODEL) on port $(PORT) (PORT=, MODEL=, SERVE_FLAGS=)"
	@echo "make test     all tests; prints their number and time"
	@echo "make bench    micro benchmarks"
	@echo "make format   clang-format;  make tidy: clang-tidy;  make fuzz: every fuzzer, FUZZ_SECONDS=$(FUZZ_SECONDS)"

setup:
	@tools/setup.sh all

build:
	@tools/setup.sh build
	@cmake --preset release > /dev/null
	@cmake --build --preset release --parallel

# Only the program: a newcomer need not wait for the tests to be compiled.
serve:
	@tools/setup.sh build
	@cmake --preset release > /dev/null
	@cmake --build --preset release --parallel --target fathom
	build/fathom serve --model $(MODEL) --port $(PORT) $(SERVE_FLAGS)

# The Python clients of some tests live in build/venv (tools/venv.sh); nothing of it is part of the program.
test: setup
	@tools/venv.sh > /dev/null
	@cmake --preset release > /dev/null
	@cmake --build --preset release --parallel
	@tools/run_tests.sh build --label-regex 'fast|slow'

bench: build
	@for program in build/bench/*_bench; do $$program || exit 1; done

format:
	@clang-format-19 -i $(SOURCES)

format-check:
	@clang-format-19 --dry-run -Werror $(SOURCES)

tidy:
	@cmake --preset release > /dev/null
	@tools/tidy.sh build

fuzz:
	@tools/fuzz.sh $(FUZZ_SECONDS)

layers:
	@tools/check_layers.py

clean:
	rm -rf build
