# One image for the operator, for Spark's drivers and for its executors. See docs/image.md.
#
#     tools/build-image.sh        builds it with podman, buildah or docker
#
# The build downloads only Debian's packages and the packages of requirements/*.lock, which pip
# checks against their hashes. pip's configuration and certificate authority, if any, are mounted
# as secrets and are in no layer.
ARG BASE=docker.io/library/debian:bookworm-slim

# The runtime: Python, Java, and an init. No pip, no compiler, no setuid programs.
FROM ${BASE} AS system
# (Java's package makes a link to a manual page, below a folder that slim images do not have.)
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
        ca-certificates openjdk-17-jre-headless python3 tini \
 # For heaps of 32 GiB and more: Java starts without it, too.
 && rm -f /usr/lib/jvm/java-17-openjdk-*/lib/server/classes_nocoops.jsa \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
        /var/log/alternatives.log /var/cache/debconf/*-old /var/lib/dpkg/*-old \
 && find / -xdev -type f -perm /6000 -exec chmod ug-s {} + \
 # Java wants its user to be in /etc/passwd.
 && groupadd --gid 185 spark \
 && useradd --uid 185 --gid 185 --home-dir /home/spark --create-home --skel /nonexistent \
        --shell /usr/sbin/nologin --comment "" spark \
 && ln -s "$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")" /opt/java \
 && install -d -o 185 -g 185 /opt/spark/conf /opt/spark/work-dir
ENV JAVA_HOME=/opt/java \
    LANG=C.UTF-8 \
    PATH=/opt/tandem/app/bin:/opt/tandem/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYSPARK_PYTHON=/opt/tandem/venv/bin/python \
    SPARK_HOME=/opt/tandem/venv/lib/python3.11/site-packages/pyspark \
    SPARK_LAUNCHER_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" \
    TANDEM_CACHE=/tmp/tandem \
    TANDEM_SPARK_APPS=/opt/tandem/spark_apps \
    TANDEM_SPARK_ARCHIVE=/opt/tandem/spark.jsa

FROM system AS build
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
        binutils python3-pip python3-venv
WORKDIR /src
COPY requirements/runtime.lock requirements/part-copy.lock requirements/dev.lock requirements/
COPY tools/image/install.sh tools/image/
# setuptools builds PySpark's source distribution and our own package; it does not stay.
RUN --mount=type=secret,id=pip_conf --mount=type=secret,id=pip_ca \
    --mount=type=cache,target=/root/.cache/pip \
    tools/image/install.sh dependencies
COPY tools/image/trim.py tools/image/left-out.txt tools/image/
RUN python3 tools/image/trim.py /opt/tandem/venv/lib/python3.11/site-packages tools/image/left-out.txt \
 && tools/image/install.sh compiled
COPY pyproject.toml README.md LICENSE ./
COPY requirements/runtime.in requirements/
COPY operator operator
RUN tools/image/install.sh tandem
COPY spark_apps /opt/tandem/spark_apps
# The class-data archive is bound to exactly this Java and this class path.
COPY tools/spark_setup.py tools/spark_warmup.py tools/
RUN python tools/spark_setup.py && test -s "$TANDEM_SPARK_ARCHIVE" && chmod 644 "$TANDEM_SPARK_ARCHIVE"

FROM system
ARG VERSION=dev
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="Table services on Delta Lake tables while everyone writes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/tandem/venv /opt/tandem/venv
COPY --from=build /opt/tandem/spark.jsa /opt/tandem/spark.jsa
COPY --from=build /opt/tandem/app /opt/tandem/app
COPY spark_apps /opt/tandem/spark_apps
# Where Spark looks for them: the second is what an executor's pod runs before it is stopped.
COPY --chmod=755 tools/image/entrypoint.sh tools/image/decom.sh /opt/
COPY LICENSE /opt/tandem/LICENSE
USER 185:185
WORKDIR /opt/spark/work-dir
ENTRYPOINT ["/opt/entrypoint.sh"]
CMD ["--help"]
