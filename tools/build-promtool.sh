#!/bin/sh
# Build promtool, by which tests check alerts, dashboard and metrics, into
# ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin.
#
# Does nothing if the version that tools/promtool pins exists. Prints the program's path.
set -eu
. "$(dirname "$0")/go.sh"

program="$cache/bin/promtool"
if ! is_built promtool "$program"; then
    alone
    if ! is_built promtool "$program"; then
        echo "Building promtool (two minutes the first time)" >&2
        # Without service discovery in clouds, which is most of Prometheus' code.
        build_tags=remove_all_sd
        build promtool "" github.com/prometheus/prometheus/cmd/promtool
    fi
fi
echo "$program"
