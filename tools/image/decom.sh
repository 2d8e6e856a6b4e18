#!/bin/sh
# Spark's hook before an executor's pod is stopped (spark.decommission.enabled): tells the
# executor to hand over its blocks and waits until it has ended. Kubernetes ends the wait with the
# pod's grace period.
set -eu

for process in /proc/[0-9]*; do
    if tr '\0' '\n' <"$process/cmdline" 2>/dev/null |
        grep -qx 'org\.apache\.spark\.scheduler\.cluster\.k8s\.KubernetesExecutorBackend' &&
        [ "$(readlink "$process/exe")" = "$(readlink -f "$JAVA_HOME/bin/java")" ]; then
        kill -s PWR "${process#/proc/}"
        while [ -d "$process" ]; do sleep 1; done
    fi
done
