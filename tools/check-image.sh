#!/bin/bash
# Inspect the image of tools/build-image.sh and run jobs in it: its user, its content,
# whether the class-data archive fits, and the main job on real data with a read-only root.
# Needs podman or docker, and `make setup`. Exits with 1 at the first failed check.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/image/engine.sh
if [ "$engine" = buildah ]; then
    echo "Running the image needs podman or docker: run \`apt-get install podman\`." >&2
    exit 1
fi

# As a pod of the chart runs it.
options=(--rm --network host --read-only --tmpfs /tmp:rw,mode=1777 --cap-drop ALL --security-opt no-new-privileges)
if [ "$engine" = podman ]; then options+=(--read-only-tmpfs=false); fi
work=$(mktemp -d "${TMPDIR:-/var/tmp}/tandem-check-XXXXXX")
trap 'rm -rf "$work"' EXIT

inside() { "$engine" run "${options[@]}" "$image" "$@"; }
# tell WHAT FOUND WANTED: prints one line; exits if the two differ.
tell() {
    printf '%-44s %s\n' "$1" "$2"
    if [ "$2" != "$3" ]; then
        echo "expected: $3" >&2
        exit 1
    fi
}
seconds() {
    local began=$EPOCHREALTIME
    "$@" >/dev/null 2>"$work/said" || { cat "$work/said" >&2; exit 1; }
    awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f s", b - a}'
}

printf '%-44s %s\n' "$image, size on disk" \
    "$("$engine" image inspect --format '{{.Size}}' "$image" | awk '{printf "%.0f MB", $1 / 1e6}')"
tell "user and group" "$(inside sh -c 'echo "$(id -u):$(id -g) $(id -un)"')" "185:185 spark"
tell "version" "$(inside --version)" "tandem $version"
tell "setuid and setgid programs" "$(inside sh -c 'find / -xdev -type f -perm /6000 2>/dev/null | wc -l')" 0
tell "files that its user could change" \
    "$(inside sh -c 'find / -xdev -type f -writable 2>/dev/null | wc -l')" 0
tell "pip, compilers, configuration of pip" \
    "$(inside sh -c 'for p in pip pip3 gcc cc ld; do command -v $p; done; find / -xdev -name "pip*.conf" -o -xdev -path "/run/secrets/*" 2>/dev/null; env | grep -E "^PIP_|PROXY|TOKEN|PASSWORD"' | wc -l)" 0
archive='-Xshare:on -Xlog:disable -Xlog:all=error:stderr -XX:SharedArchiveFile=$TANDEM_SPARK_ARCHIVE'
tell "class-data archive fits the class path" \
    "$(inside sh -c "java $archive -cp \"\$SPARK_HOME/conf:\$SPARK_HOME/jars/*\" -version >/dev/null 2>&1 && echo yes")" yes
other="cp \$SPARK_HOME/lib/tink-*.jar /tmp/a.jar && java $archive -cp \"/tmp/a.jar:\$SPARK_HOME/jars/*\" -version"
tell "it does not fit another class path" "$(inside sh -c "$other" >/dev/null 2>&1 || echo true)" true
tell "which goes without it, in silence" \
    "$(inside sh -c "${other/-Xshare:on/-Xshare:auto} 2>&1 | grep -c -v '^OpenJDK\|^openjdk'" || true)" 0
printf '%-44s %s\n' "container that does nothing" "$(seconds inside true)"
printf '%-44s %s\n' "tandem --help" "$(seconds inside --help)"

mkdir "$work/conf" "$work/lake" "$work/specs"
cat >"$work/specs/job.py" <<'END'
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
assert spark.sparkContext.parallelize(range(10), 2).map(lambda n: n * n).sum() == 285
spark.stop()
END
chmod 755 "$work" "$work"/*
# As Spark's submission makes a driver's pod; the argument is one more option of Java.
driver() {
    printf 'spark.master=local[2]\nspark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1 %s\n' \
        "$1" >"$work/conf/spark.properties"
    "$engine" run "${options[@]}" -v "$work/conf:/opt/spark/conf:ro" -v "$work/specs:/specs:ro" \
        -e SPARK_CONF_DIR=/opt/spark/conf -e SPARK_DRIVER_BIND_ADDRESS=127.0.0.1 "$image" \
        driver --properties-file /opt/spark/conf/spark.properties \
        --class org.apache.spark.deploy.PythonRunner local:///specs/job.py
}
printf '%-44s %s\n' "driver with a job of nothing" "$(seconds driver -Xshare:on)"
printf '%-44s %s\n' "the same without the archive" "$(seconds driver -XX:SharedArchiveFile=/none)"

python=.venv/bin/python
PYTHONPATH=examples/flights $python examples/flights/data.py "$work/lake/flights" >/dev/null
for file in examples/flights/*.yaml; do
    sed 's#file:///.*#file:///lake/flights#' "$file" >"$work/specs/$(basename "$file")"
done
chmod -R a+rwX "$work/lake"
main_job() {
    "$engine" run "${options[@]}" -v "$work/lake:/lake" -v "$work/specs:/specs:ro" "$image" run \
        -f /specs/table.yaml -f /specs/compaction.yaml -f /specs/update.yaml -f /specs/delete.yaml
}
printf '%-44s %s\n' "tandem run: compaction, update, delete" "$(seconds main_job)"
PYTHONPATH=examples/flights $python - "$work" <<'END'
import sys
from pathlib import Path

import data
from showing import has_the_rows

work = Path(sys.argv[1])
sys.exit(not has_the_rows(work / "lake" / "flights", data.expected(data.unpack(work))))
END
