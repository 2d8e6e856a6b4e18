#!/bin/sh
# Set up what `make hudi` compares with: Spark 3.5 in an environment of its own, and Apache Hudi's
# bundle, below ${TANDEM_CACHE:-$HOME/.cache/tandem}/hudi (1 GB).
#
# Does nothing if the pinned versions are there. Prints the environment's Python.
set -eu
cd "$(dirname "$0")/.."

package=org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0
sha256=cc79fba00822f3a6c3a860df99375c2e3d4a034d037dbf4213a4966a706a7676

home=${TANDEM_CACHE:-$HOME/.cache/tandem}/hudi
python="$home/venv/bin/python"
jar="$home/hudi-bundle.jar"
pins=$({ cat requirements/hudi.lock; echo "$package $sha256"; } | cksum)

quietly() {
    if "$@" >"$log" 2>&1; then return 0; fi
    tail -n 15 "$log" >&2
    echo "Setting up $package failed (see above): run \`make hudi\` again." >&2
    exit 1
}

if [ "$(cat "$home/.pinned" 2>/dev/null)" != "$pins" ]; then
    echo "Setting up $package (several minutes the first time)" >&2
    rm -rf "$home"
    mkdir -p "$home"
    log=$(mktemp)
    ivy=$(mktemp -d)
    trap 'rm -rf "$log" "$ivy"' EXIT
    quietly "$(tools/find-python.sh)" -m venv "$home/venv"
    quietly "$python" -m pip install --disable-pip-version-check --require-hashes --no-deps \
        -r requirements/hudi.lock
    # By Spark's own resolver, as Delta's jars.
    quietly "$python" -c 'import sys
from pyspark import SparkConf, SparkContext

conf = SparkConf().setMaster("local[1]").setAppName("fetch").set("spark.ui.enabled", "false")
conf.set("spark.jars.packages", sys.argv[1]).set("spark.jars.ivy", sys.argv[2])
SparkContext(conf=conf).stop()' "$package" "$ivy"
    cp "$ivy"/jars/org.apache.hudi_*.jar "$jar"
    found=$("$python" -c 'import hashlib, sys
print(hashlib.file_digest(open(sys.argv[1], "rb"), "sha256").hexdigest())' "$jar")
    if [ "$found" != "$sha256" ]; then
        rm -f "$jar"
        echo "$package has the SHA-256 $found, expected $sha256: compare with its publisher's, then" \
            "correct tools/setup-hudi.sh." >&2
        exit 1
    fi
    echo "$pins" > "$home/.pinned"
fi
echo "$python"
