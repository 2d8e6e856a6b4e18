#!/bin/sh
# What the container does, by its first argument:
#
#     driver …     Spark's driver on Kubernetes, as spark-submit starts it in a pod
#     executor     Spark's executor, which is configured by SPARK_* variables
#     <program> …  that program, if the image has it
#     …            `tandem …`
#
# The contract with Spark 4.2 is that of its own entrypoint: names of variables, order of the
# class path, /opt/spark/conf. In addition, JVMs start with the image's class-data archive. It
# fits only if the class path begins as at the archive's creation. Otherwise Java starts without it,
# more slowly.
set -eu

init="/usr/bin/tini -s --"
archive="-XX:SharedArchiveFile=$TANDEM_SPARK_ARCHIVE -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"

# Spark mounts its settings at SPARK_CONF_DIR. A folder with files on the class path rules the
# archive out. The file of settings is passed by name, so a folder with only this file is left
# off the class path. A folder with another file, such as log4j2.properties, stays.
only_settings() {
    for file in "$1"/* "$1"/.[!.]*; do
        case "${file##*/}" in
            '*' | '.[!.]*' | spark.properties | ..*) ;;
            *) return 1 ;;
        esac
    done
}
if [ -n "${SPARK_CONF_DIR:-}" ] && only_settings "$SPARK_CONF_DIR"; then
    unset SPARK_CONF_DIR
fi

# Prints the file of settings among the arguments of spark-submit.
properties() {
    while [ $# -gt 1 ]; do
        if [ "$1" = --properties-file ]; then
            printf '%s\n' "$2"
            return
        fi
        shift
    done
}

case "${1:-}" in
driver)
    shift
    settings=$(properties "$@")
    # Settings of the user stay; SPARK_DRIVER_BIND_ADDRESS is the pod's own address.
    if [ -z "$settings" ] || ! grep -qs '^spark\.driver\.defaultJavaOptions' "$settings"; then
        set -- --conf "spark.driver.defaultJavaOptions=$archive" "$@"
    fi
    # shellcheck disable=SC2086 # several words
    exec $init "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    class_path="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${HADOOP_CONF_DIR:+$HADOOP_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}"
    class_path="$class_path$SPARK_HOME/jars/*"
    class_path="$class_path${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}${SPARK_DIST_CLASSPATH:+:$SPARK_DIST_CLASSPATH}:$PWD"
    # SPARK_JAVA_OPT_0, _1, …: one Java option each, which may contain spaces.
    set --
    number=0
    while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
        set -- "$@" "$option"
        number=$((number + 1))
    done
    # shellcheck disable=SC2086 # several words
    exec $init "$JAVA_HOME/bin/java" $archive "$@" \
        -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "$class_path" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    if [ $# -eq 0 ] || ! command -v -- "$1" >/dev/null 2>&1; then
        set -- tandem "$@"
    fi
    # shellcheck disable=SC2086 # several words
    exec $init "$@"
    ;;
esac
