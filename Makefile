# SPDX-License-Identifier: Apache-2.0
# A thin front: everything is built by Meson and Ninja in $(BUILD). See CONTRIBUTING.md.
BUILD ?= build
PREFIX ?= /usr/local
MESON_ARGS ?=
NAME ?=
ARGS ?=

.DEFAULT_GOAL := all
.PHONY: all setup demo test bench check install clean help

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

setup:
	@tools/setup

$(BUILD)/build.ninja: | setup
	@meson setup $(BUILD) --prefix=$(PREFIX) $(MESON_ARGS)

demo: all
	@BUILD=$(BUILD) tools/demo $(ARGS)

test: setup all
	@BUILD=$(BUILD) tools/test $(ARGS)

bench:
	@test -n "$(NAME)" || { bench/run --help; echo "make bench needs NAME=..., as above" >&2; exit 2; }
	@bench/run $(NAME) $(ARGS)

check:
	@.ci/run

install: all
	@meson install -C $(BUILD)

clean:
	@rm -rf build build-*

help:
	@echo 'make                   build library and commands in $(BUILD)/ (installs missing Debian packages first)'
	@echo 'make demo              a trainer and three inference nodes on this machine'
	@echo 'make test              build and run every test; ARGS="--suite unit" for some'
	@echo 'make bench NAME=pair   a benchmark; ARGS="--size 1G" for its options, bench/run --help for the list'
	@echo 'make check             everything that CI runs (linters, sanitizers, tests); takes a while'
	@echo 'make install           to PREFIX ($(PREFIX)); DESTDIR is respected'
	@echo 'make clean             remove build folders'
