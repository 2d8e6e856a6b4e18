#!/bin/sh
# Fetch the tables that other projects test their readers with, for `make matrix`: of Delta and its
# kernel, delta-kernel-rs, DuckDB's extension and Delta Acceptance Testing (60 MB). They go into
# ${TANDEM_CACHE:-$HOME/.cache/tandem}/golden, a folder a project, and archives are unpacked there.
#
# Does nothing if the pinned versions are there, or if TANDEM_GOLDEN_TABLES is a folder with such
# tables. Prints the folder.
set -eu
cd "$(dirname "$0")/.."

if [ -n "${TANDEM_GOLDEN_TABLES:-}" ]; then
    echo "$TANDEM_GOLDEN_TABLES"
    exit
fi

home=${TANDEM_CACHE:-$HOME/.cache/tandem}/golden
dat=https://github.com/delta-incubator/dat/releases/download/v0.0.3/deltalake-dat-v0.0.3.tar.gz
dat_sha256=19c045bc6f4e8531d1985d0f7bb156d788e65078b435d613c8e4a9c753b4a982

# Only these folders of a commit are fetched.
fetch() {
    repository=$1 commit=$2
    shift 2
    into="$home/$(basename "$repository")"
    git init --quiet "$into"
    git -C "$into" remote add origin "https://github.com/$repository"
    git -C "$into" config remote.origin.promisor true
    git -C "$into" fetch --quiet --depth 1 --filter=blob:none origin "$commit"
    git -C "$into" sparse-checkout set "$@"
    git -C "$into" checkout --quiet FETCH_HEAD
    rm -rf "$into/.git"
}

pins=$(cksum < tools/fetch-golden-tables.sh)
if [ "$(cat "$home/.pinned" 2>/dev/null)" != "$pins" ]; then
    echo "Fetching the tables of other projects" >&2
    rm -rf "$home"
    mkdir -p "$home/dat"
    fetch delta-io/delta bb1057f4367f555b01e299fd1690d85aafc0ac4c \
        connectors/golden-tables/src/main/resources/golden spark/src/test/resources/delta \
        kernel/kernel-defaults/src/test/resources
    fetch delta-io/delta-kernel-rs b14c3fb84003346db99e4bcc6b473d87b43e034b kernel/tests/data
    fetch duckdb/duckdb-delta e74cf88ebf64a6638de443025510d8269c31616a data
    .venv/bin/python - "$dat" "$dat_sha256" "$home" <<'UNPACK'
import hashlib, io, sys, tarfile, urllib.request
from pathlib import Path

import pyarrow as pa

url, expected, home = sys.argv[1], sys.argv[2], Path(sys.argv[3])
found = urllib.request.urlopen(url).read()
digest = hashlib.sha256(found).hexdigest()
if digest != expected:
    sys.exit(f"{url} has the SHA-256 {digest}, expected {expected}")
tarfile.open(fileobj=io.BytesIO(found)).extractall(home / "dat", filter="data")
for archive in home.rglob("*.tar.zst"):
    if archive.name.startswith("300k-"):
        continue  # a log alone, for which deltalake takes 15 GB
    with pa.input_stream(archive, compression="zstd") as stream:
        into = archive.with_name(archive.name.removesuffix(".tar.zst"))
        tarfile.open(fileobj=stream, mode="r|").extractall(into, filter="data")
UNPACK
    echo "$pins" > "$home/.pinned"
fi
echo "$home"
