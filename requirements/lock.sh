#!/bin/sh
# Writes the hashed locks anew from pyproject.toml: names, versions and hashes only, for every
# Python from 3.11 on. `sh requirements/lock.sh --upgrade` takes newer versions, too.
set -eu
cd "$(dirname "$0")/.."

lock() { # name, then what to lock
	name=$1
	shift
	"${UV:-.venv/bin/uv}" pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--generate-hashes --no-emit-index-url --no-emit-find-links --strip-extras --no-annotate --no-header \
		--output-file "requirements/$name.lock" "$@"
}

lock bench pyproject.toml requirements/build.in --extra bench "$@"
lock test pyproject.toml requirements/build.in --extra test --constraint requirements/bench.lock "$@"
lock docs pyproject.toml requirements/build.in requirements/docs.in --extra test \
	--constraint requirements/bench.lock "$@"
lock runtime pyproject.toml --extra compression --extra otel --extra registry --constraint requirements/bench.lock "$@"
lock broker pyproject.toml --extra compression --extra otel --extra registry --extra broker --constraint requirements/bench.lock "$@"
lock build requirements/build.in --constraint requirements/bench.lock "$@"
lock pip requirements/pip.in "$@"
lock peers requirements/peers.in "$@"
