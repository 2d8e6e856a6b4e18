#!/bin/sh
# Find a Java for Spark (17 or later). Prints nothing on success.
#
# Searches where Spark does: JAVA_HOME, then PATH. If there is none, and the user is root on a
# system with apt, Debian's package is installed; otherwise one sentence says what to do.
set -eu

minimum=17
package=openjdk-17-jre-headless

# Prints the major version of the given java, or nothing.
major() {
    "$1" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

usable() {
    command -v "$1" >/dev/null 2>&1 || return 1
    found=$(major "$1")
    [ -n "$found" ] && [ "$found" -ge "$minimum" ]
}

if [ -n "${JAVA_HOME:-}" ]; then
    if usable "$JAVA_HOME/bin/java"; then exit 0; fi
    echo "Spark needs Java $minimum or later, and JAVA_HOME=$JAVA_HOME has none: run \`unset JAVA_HOME\`." >&2
    exit 1
fi
if usable java; then exit 0; fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing $package, which Spark needs." >&2
    log=$(mktemp)
    if { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$package"; } >"$log" 2>&1 && usable java; then
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
    fix="sudo dnf install -y java-17-openjdk-headless"
elif command -v brew >/dev/null 2>&1; then
    fix="brew install openjdk@17 && export JAVA_HOME=\$(brew --prefix openjdk@17)"
else
    fix="export JAVA_HOME=<a JDK 17 or later>"
fi
echo "Spark needs Java $minimum or later, and there is none: run \`$fix\`." >&2
exit 1
