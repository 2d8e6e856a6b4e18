#!/bin/sh
# Runs inside of the image's build: `install.sh dependencies` makes /opt/tandem/venv from the lock
# file, `install.sh compiled` strips and compiles it, `install.sh tandem` puts this tree's package
# into /opt/tandem/app.
set -eu

venv=/opt/tandem/venv
app=/opt/tandem/app
python=$venv/bin/python

# Set for one command only, and never in a layer.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
if [ -f /run/secrets/pip_conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip_conf; fi
if [ -f /run/secrets/pip_ca ]; then export PIP_CERT=/run/secrets/pip_ca; fi

compile() {
    # By content, not by time: the same files in every build, and no check at start.
    "$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$@"
}

case "$1" in
dependencies)
    python3 -m venv --without-pip "$venv"
    # Build tools are in the lock file of development, and in a separate environment.
    python3 -m venv /opt/build
    awk '/^setuptools==/ {on = 1} on {print} on && !/\\$/ {exit}' requirements/dev.lock >/tmp/build.lock
    /opt/build/bin/pip install -q --require-hashes --no-deps -r /tmp/build.lock
    awk '/^pyspark==/ {on = 1} on {print} on && !/\\$/ {exit}' requirements/runtime.lock >/tmp/pyspark.lock
    # Its source distribution is the only one: from it a wheel, without isolation.
    mkdir /tmp/wheels
    /opt/build/bin/pip wheel -q --require-hashes --no-deps --no-build-isolation -w /tmp/wheels -r /tmp/pyspark.lock
    awk '/^pyspark==/ {off = 1} !off {print} off && !/\\$/ {off = 0}' requirements/runtime.lock >/tmp/others.lock
    /opt/build/bin/pip --python "$python" install -q --require-hashes --no-deps --no-compile \
        --only-binary :all: -r /tmp/others.lock -r requirements/part-copy.lock
    /opt/build/bin/pip --python "$python" install -q --no-deps --no-compile /tmp/wheels/pyspark-*.whl
    rm -rf /tmp/wheels
    # A separate layer for files that change with every commit.
    echo "$app" >"$venv/lib/python3.11/site-packages/tandem.pth"
    ;;
compiled)
    # Debug symbols: a fifth of these files.
    for package in obstore pyarrow pyroaring; do
        find "$venv"/lib/python3.11/site-packages/$package* -name '*.so*' -exec strip --strip-unneeded {} +
    done
    compile "$venv"
    ;;
tandem)
    /opt/build/bin/pip wheel -q --no-deps --no-build-isolation -w /tmp/wheels .
    /opt/build/bin/pip --python "$python" install -q --no-deps --no-compile --target "$app" /tmp/wheels/tandem_lake-*.whl
    compile "$app"
    ;;
*)
    echo "install.sh: dependencies, compiled or tandem?" >&2
    exit 2
    ;;
esac
