#!/bin/sh
# Set up what tests of Unity Catalog need below ${TANDEM_CACHE:-$HOME/.cache/tandem}: a server of its
# API (uc-server), and DuckDB with its extensions in an environment of its own (duckdb-unity).
#
# Does nothing if the pinned versions are there. Prints the server's path. The server is a program
# of Rust; if cargo is missing or too old, a toolchain is installed there.
set -eu
cd "$(dirname "$0")/.."

version=0.0.11
rust=1.95.0
rustup=1.28.2
cache=${TANDEM_CACHE:-$HOME/.cache/tandem}
server="$cache/uc-server"
duckdb="$cache/duckdb-unity"

quietly() {
    if "$@" >"$log" 2>&1; then return 0; fi
    tail -n 15 "$log" >&2
    echo "Setting up Unity Catalog's tests failed (see above): run tools/build-unity.sh again." >&2
    exit 1
}

# The record of what `cargo install` has installed.
has_server() {
    [ -x "$server/bin/uc-server" ] && grep -q "\"olai-uc-server $version " "$server/.crates.toml" 2>/dev/null
}

# rust_minor RUSTC: the minor version of that compiler (1.x), or nothing.
rust_minor() {
    "$1" --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p'
}

find_cargo() {
    found=$(rust_minor rustc || true)
    needed=${rust#1.}
    if [ -n "$found" ] && [ "$found" -ge "${needed%.*}" ]; then
        return
    fi
    export CARGO_HOME="$cache/rust/cargo" RUSTUP_HOME="$cache/rust/rustup" RUSTUP_TOOLCHAIN=$rust
    PATH="$CARGO_HOME/bin:$PATH"
    if [ "$(rust_minor rustc || true)" != "${needed%.*}" ]; then
        echo "Installing Rust $rust into $cache/rust" >&2
        mkdir -p "$cache/rust"
        "$(tools/find-python.sh)" - "$rustup" "$cache/rust/rustup-init" <<'PYTHON'
import hashlib, os, platform, sys, urllib.request

version, target = sys.argv[1:]
url = f"https://static.rust-lang.org/rustup/archive/{version}/{platform.machine()}-unknown-linux-gnu/rustup-init"
with urllib.request.urlopen(url) as answer, urllib.request.urlopen(f"{url}.sha256") as sums:
    program, expected = answer.read(), sums.read().split()[0].decode()
if hashlib.sha256(program).hexdigest() != expected:
    sys.exit(f"{url} is damaged: run it again")
with open(target, "wb") as file:
    file.write(program)
os.chmod(target, 0o755)
PYTHON
        quietly "$cache/rust/rustup-init" -y --no-modify-path --profile minimal \
            --default-toolchain "$rust"
    fi
}

build_server() {
    find_cargo
    echo "Building Unity Catalog's test server (15 minutes the first time)" >&2
    # Without symbols: half the time and a tenth of the size.
    CARGO_TARGET_DIR="$build" CARGO_PROFILE_DEV_DEBUG=0 quietly cargo install olai-uc-server \
        --version "$version" --locked --features bin --debug --root "$server"
}

# alone: from here on no other such script works on this cache, if the system has flock.
alone() {
    mkdir -p "$cache"
    if command -v flock >/dev/null 2>&1; then
        exec 9>"$cache/unity.lock"
        flock 9
    fi
}

pins=$(cksum <requirements/unity.lock)
if ! has_server || [ "$(cat "$duckdb/.pinned" 2>/dev/null)" != "$pins" ]; then
    alone
    log=$(mktemp)
    build=$(mktemp -d)
    trap 'rm -rf "$log" "$build"' EXIT
    if ! has_server; then build_server 9>&-; fi
    if [ "$(cat "$duckdb/.pinned" 2>/dev/null)" != "$pins" ]; then
        rm -rf "$duckdb"
        quietly "$(tools/find-python.sh)" -m venv "$duckdb"
        quietly "$duckdb/bin/python" -m pip install --disable-pip-version-check --require-hashes \
            --no-deps -r requirements/unity.lock
        echo "$pins" >"$duckdb/.pinned"
    fi
fi
echo "$server/bin/uc-server"
