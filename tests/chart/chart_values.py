"""Values with which charts/tandem is tried: every switch on and off, and what people combine."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
BUNDLED: Json = {"etcd": {"bundled": {"enabled": True}}}
EXTERNAL: Json = {"etcd": {"endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"]}}
NAMESPACES = ["team-a", "team-b"]
_TOLERATIONS = [{"key": "lake", "operator": "Exists", "effect": "NoSchedule"}]
_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "lake", "operator": "In", "values": ["yes"]}]}
            ]
        }
    }
}

MATRIX: dict[str, Json] = {
    "bundled": BUNDLED,
    "external": EXTERNAL,
    "external-tls-user": {
        "etcd": {
            "endpoints": ["https://etcd.example:2379"],
            "prefix": "/lakes/one",
            "tls": {
                "caSecret": {"name": "etcd-ca", "key": "root.pem"},
                "clientSecret": {"name": "etcd-client"},
            },
            "auth": {
                "user": "lake",
                "passwordSecret": {"name": "etcd-user", "key": "secret"},
            },
        }
    },
    "namespaced": {**BUNDLED, "watch": {"namespaces": NAMESPACES}},
    "nothing-of-the-cluster": {
        **EXTERNAL,
        "watch": {"namespaces": NAMESPACES},
        "crds": {"enabled": False},
        "rbac": {"userRoles": False},
    },
    "patterns": {
        **EXTERNAL,
        "watch": {"namespaces": ["team-*"]},
        "jobs": {"namespaces": NAMESPACES},
    },
    "named-secrets": {**BUNDLED, "rbac": {"secrets": {"team-a": ["lake", "lake-2"]}}},
    "named-secrets-namespaced": {
        **BUNDLED,
        "watch": {"namespaces": NAMESPACES},
        "rbac": {"secrets": {"team-a": ["lake"]}},
    },
    "index-servers": {
        **EXTERNAL,
        "jobs": {"namespaces": NAMESPACES},
        "indexServers": {
            "enabled": True,
            "serviceAccount": {"annotations": {"cloud.example/role": "reader"}},
            "readersFrom": [{"podSelector": {"matchLabels": {"reads": "index"}}}],
        },
        "networkPolicy": {"egress": {"enabled": True}},
    },
    "index-servers-namespaced": {
        **BUNDLED,
        "watch": {"namespaces": NAMESPACES},
        "indexServers": {"enabled": True, "reviews": False},
    },
    "job-pools": {
        **EXTERNAL,
        "jobs": {"namespaces": NAMESPACES, "pool": {"slots": 4}},
    },
    "no-crds": {**EXTERNAL, "crds": {"enabled": False}},
    "crds-go-too": {**EXTERNAL, "crds": {"keep": False}},
    "three-replicas": {
        **EXTERNAL,
        "replicaCount": 3,
        "priorityClassName": "system-cluster-critical",
    },
    "in-process": {"locks": "in-process"},
    "monitoring": {
        **BUNDLED,
        "serviceMonitor": {"enabled": True, "labels": {"release": "prom"}, "interval": "30s"},
        "prometheusRule": {
            "enabled": True,
            "labels": {"release": "prom"},
            "runbookUrl": "https://docs.example/runbooks/",
        },
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "Lake"}},
        "service": {"port": 9090, "annotations": {"a.b/c": "d"}},
    },
    "closed-network": {
        **BUNDLED,
        "networkPolicy": {
            "metricsFrom": [
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "mon"}}}
            ],
            "egress": {
                "enabled": True,
                "ports": [443],
                "extra": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
            },
        },
    },
    "closed-network-external": {
        "etcd": {"endpoints": ["https://etcd.example:12379"]},
        "networkPolicy": {"egress": {"enabled": True}},
    },
    "own-secrets": {
        "etcd": {
            "bundled": {
                "enabled": True,
                "tlsSecret": "made-tls",
                "rootSecret": "made-root",
                "userSecret": "made-user",
                "persistence": {"enabled": False},
                "image": {"registry": "", "digest": "sha256:" + "0" * 64},
            }
        }
    },
    "registry": {
        **BUNDLED,
        "image": {"registry": "registry.example:5000/lake", "digest": "sha256:" + "a" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "jobs": {"namespaces": NAMESPACES, "image": "registry.example/spark:1"},
    },
    "placed": {
        "etcd": {
            "bundled": {
                "enabled": True,
                "persistence": {"size": "5Gi", "storageClass": "fast"},
                "nodeSelector": {"disk": "ssd"},
                "tolerations": _TOLERATIONS,
                "affinity": _AFFINITY,
            }
        },
        "nodeSelector": {"disk": "ssd"},
        "tolerations": _TOLERATIONS,
        "affinity": _AFFINITY,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "tandem"}},
            }
        ],
        "podAnnotations": {"a.b/c": "d"},
        "podLabels": {"team": "lake"},
        "extraEnv": [
            {"name": "AWS_REGION", "value": "eu-central-1"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "t", "key": "k"}}},
        ],
        "extraVolumes": [{"name": "trust", "configMap": {"name": "trust"}}],
        "extraVolumeMounts": [{"name": "trust", "mountPath": "/etc/trust", "readOnly": True}],
    },
    "jobs": {
        **EXTERNAL,
        "allowedLocations": {"team-a": ["s3://lake/a/", "file:///data/"], "*": ["gs://shared/"]},
        "allowedEndpoints": ["minio.minio.svc:9000", "*.example"],
        "templatePolicy": "any",
        "templateAllow": ["spark.extraListeners", "spec.batchScheduler"],
        "jobs": {
            "namespaces": NAMESPACES,
            "serviceAccount": {"name": "spark", "annotations": {"cloud.example/role": "lake"}},
            "max": 0,
            "sparkTemplate": {
                "metadata": {"labels": {"team": "lake"}},
                "spec": {"nodeSelector": {"disk": "ssd"}, "sparkConf": {"spark.x": "y"}},
            },
        },
        "settings": {
            "logFormat": "console",
            "verbose": True,
            "tablePollSeconds": 2.5,
            "extraArgs": ["--automatic-slots=2"],
        },
    },
    "by-others": {
        **EXTERNAL,
        "serviceAccount": {"create": False, "name": "made-by-others"},
        "rbac": {"create": False, "userRoles": False},
        "jobs": {"namespaces": ["team-a"], "serviceAccount": {"create": False}},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "replicaCount": 2,
    },
    "names": {
        **BUNDLED,
        "fullnameOverride": "the-lake-operator-of-all-our-many-teams",
        "nameOverride": "lake",
        "commonLabels": {"cost-centre": "42"},
    },
}
