#!/bin/sh
# Spark's hook before an executor's pod is stopped (spark.decommission.enabled): signals the
# executor to migrate its blocks and waits until it has ended. The pod's grace period limits the
# wait.
set -eu

for process in /proc/[0-9]*; do
    if tr '\0' '\n' <"$process/cmdline" 2>/dev/null |
        grep -qx 'org\.apache\.spark\.scheduler\.cluster\.k8s\.KubernetesExecutorBackend' &&
        [ "$(readlink "$process/exe")" = "$(readlink -f "$JAVA_HOME/bin/java")" ]; then
        kill -s PWR "${process#/proc/}"
        while [ -d "$process" ]; do sleep 1; done
    fi
done
