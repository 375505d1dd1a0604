# SPDX-License-Identifier: Apache-2.0
# Everything a developer types; `make` alone lists it. Each target installs what it lacks (tools/setup) and builds what it
# needs; run a second time it does neither. CMake presets do the same by hand: `cmake --preset release`.
.DEFAULT_GOAL := help
.PHONY: help demo build test test-thorough test-slow check check-all fix tsan asan gcc arm fuzz bench bench-build bench-gpu chaos gpu-test gpu-bundle quality-gpt quality-bert install package python python-test wheel docs clean
MAKEFLAGS += --no-print-directory --no-builtin-rules

RANKS ?= 2
FAULTS ?= 1000
PREFIX ?= $(CURDIR)/build/install
BIN = build/release/bin

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Train a residual network on 60,000 images over two processes (RANKS=4: over four)
	@tools/setup build demo
	@tools/build release trireme_program example_fashion_mnist
	@$(BIN)/trireme run -n $(RANKS) -- $(BIN)/fashion_mnist

build: ## Build the library, the program, examples, benchmarks and tests
	@tools/setup build
	@tools/build release all

test: ## Build, and run the fast tests
	@tools/setup build test
	@tools/build release all
	@tools/test release fast

test-thorough: ## Build, and run what continuous integration tests beyond the fast tests
	@tools/setup build test
	@tools/build release all
	@tools/test release thorough

test-slow: ## Build, and run the slow tests, then the fuzzers
	@tools/setup build test demo shells slurm prometheus transformers
	@tools/build release all
	@tools/test release slow
	@$(MAKE) fuzz

check: ## Formatting, clang-tidy, headers, directions of includes, links of the documentation
	@tools/setup build test check
	@tools/build release
	@tools/check $(CHECK)

check-all: ## check on every file, GCC, Arm, sanitizers, all tests, docs, a moment of each benchmark
	@$(MAKE) check CHECK=--all
	@$(MAKE) tsan
	@$(MAKE) asan
	@$(MAKE) gcc
	@$(MAKE) arm
	@$(MAKE) test
	@$(MAKE) test-thorough
	@$(MAKE) test-slow
	@$(MAKE) docs
	@$(MAKE) bench BENCH=--smoke

fix: ## Reformat every source file
	@tools/setup build check
	@tools/check --fix

tsan: ## Thread sanitizer, on the tests with threads of the components without LibTorch
	@tools/setup build test
	@tools/build tsan threaded_tests
	@tools/test tsan threads

asan: ## Address and undefined-behaviour sanitizers, on the fast and thorough tests
	@tools/setup build test
	@tools/build asan all
	@tools/test asan fast thorough

gcc: ## Build with GCC, and run the fast and thorough tests
	@tools/setup build test
	@tools/build gcc all
	@tools/test gcc fast thorough

arm: ## Cross-compile the components without LibTorch for 64-bit Arm, and test them in an emulator
	@tools/setup build arm
	@tools/build arm all
	@tools/test arm fast thorough

fuzz: ## Fuzz the reader of every file format, a minute each
	@tools/setup build test fuzz
	@tools/build fuzz fuzzers
	@tools/test fuzz fuzz

bench: bench-all ## Run every benchmark beside its peers; `make bench-<name>` runs one
bench-all bench-python: python
bench-%:
	@tools/setup build bench
	@tools/build release trireme_program benchmarks
	@build/python/bin/python bench/run.py $(BENCH) $(subst -,_,$*)

quality-gpt: ## Train a GPT in Trireme and PyTorch with three seeds each, for docs/results; an hour with QUALITY="--epochs 1"
	@tools/setup build test quality
	@tools/build release trireme_program example_char_gpt
	@build/python/bin/python bench/quality/gpt.py $(QUALITY)

quality-bert: ## Pre-train a BERT in the same way
	@tools/setup build test quality transformers
	@tools/build release trireme_program example_bert
	@build/python/bin/python bench/quality/bert.py $(QUALITY)

bench-build: ## Time demo, test and a changed file in fresh clones without a compiler cache; about half an hour
	@tools/setup build test
	@tools/build release
	@build/python/bin/python bench/build_times.py

chaos: ## Disturb trainings by 1,000 random faults (FAULTS=50: by 50); about half an hour
	@tools/setup build test
	@tools/build release trireme_program restarted_training_program
	@python3 tests/chaos/chaos.py --trireme $(BIN)/trireme --training $(BIN)/restarted_training_program --faults $(FAULTS)

gpu-test: ## Build and run the tests on this machine's GPU; needs a LibTorch with CUDA
	@tools/setup build test
	@tools/gpu/run --parts tests

bench-gpu: ## Measure this machine's GPU, and training steps on it beside a plain loop of LibTorch
	@tools/setup build test
	@tools/gpu/run --parts bench

gpu-bundle: ## Pack what a GPU machine without package registries needs for both, in build/gpu-bundle
	@tools/setup build test bundle
	@tools/gpu/bundle

example-%: # one of the folders of examples/, with - for _; its README says how it is started
	@tools/setup build
	@tools/build release trireme_program example_$(subst -,_,$*)

install: ## Build the library and the program alone, and install them to PREFIX (default build/install)
	@tools/setup build
	@tools/build release install_parts
	@tools/install release "$(PREFIX)"

package: ## Make a Debian package and an archive of the library and the program, in build/packages
	@tools/setup build
	@tools/build release install_parts
	@tools/package release build/packages

python: ## Build the Python package (import trireme.torch) in build/release/python
	@tools/setup build python
	@tools/python build

python-test: ## Build and test the Python package
	@tools/setup build test python
	@tools/python test

wheel: ## Make a wheel of the Python package, in build/wheel, and try it
	@tools/setup build python
	@tools/python wheel

docs: ## Make the site of guides and interface reference, in build/docs
	@tools/setup docs
	@tools/docs

clean: ## Remove what was built, not what was installed for it
	@find build -mindepth 1 -maxdepth 1 ! -name python ! -name intelmpi ! -name oneccl ! -name mindspore ! -name deepspeed ! -name torch-prefix -exec rm -rf {} +
