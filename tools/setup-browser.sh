#!/bin/sh
# Find a browser for the test that opens a page of `tandem history --html`, and print its path.
# Prints nothing else on success.
#
# TANDEM_BROWSER takes precedence, then any Chromium on PATH. If there is none, and the user is root
# on a system with apt, Debian's package is installed; otherwise one sentence says what to do.
set -eu

package=chromium-headless-shell

found() {
    for name in chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do
        # The stub of a snap is no browser until the snap is installed.
        if path=$(command -v "$name") && "$path" --version >/dev/null 2>&1; then
            echo "$path"
            return 0
        fi
    done
    return 1
}

if [ -n "${TANDEM_BROWSER:-}" ]; then
    if [ -x "$TANDEM_BROWSER" ]; then echo "$TANDEM_BROWSER"; exit 0; fi
    echo "TANDEM_BROWSER=$TANDEM_BROWSER is no program: run \`unset TANDEM_BROWSER\`." >&2
    exit 1
fi
if found; then exit 0; fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    # A second process waits, and finds the browser installed.
    exec 9>"${TMPDIR:-/tmp}/tandem-setup-browser.lock"
    flock 9
    if found; then exit 0; fi
    echo "Installing $package, in which a test opens a page." >&2
    log=$(mktemp)
    # If a distribution has no package of the headless shell, the whole browser works, too.
    if { apt-get update -q && { DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$package" ||
            DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium; }; } >"$log" 2>&1 && found; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
    echo "Installing $package failed (see above): run \`apt-get install $package\`." >&2
    exit 1
fi

if command -v apt-get >/dev/null 2>&1; then
    fix="sudo apt-get install -y $package"
elif command -v dnf >/dev/null 2>&1; then
    fix="sudo dnf install -y chromium-headless"
elif command -v brew >/dev/null 2>&1; then
    fix="brew install --cask chromium"
else
    fix="export TANDEM_BROWSER=<a Chromium or Chrome>"
fi
echo "The tests need a browser, and there is none: run \`$fix\`." >&2
exit 1
