{{/* The plural names of our kinds, from the file names of their definitions, separated by commas. */}}
{{- define "tandem.kinds" -}}
{{- $kinds := list -}}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" -}}
{{- $kinds = base $path | trimPrefix "tandem.dev_" | trimSuffix ".yaml" | append $kinds -}}
{{- end -}}
{{- join "," $kinds -}}
{{- end -}}

{{/* The operator's rights in a namespace. examples/cluster/rbac.yaml grants the same; a test
compares. */}}
{{- define "tandem.rules" -}}
{{- $kinds := splitList "," (include "tandem.kinds" .) -}}
{{- $operations := without $kinds "laketables" "indexservers" -}}
# The resources of users. Patched only to take off the finalizer of an earlier release.
- apiGroups: [tandem.dev]
  resources: [{{ without $kinds "indexservers" | join ", " }}]
  verbs: [get, list, watch, patch]
- apiGroups: [tandem.dev]
  resources: [indexservers]
  verbs: [get, list, watch]
- apiGroups: [tandem.dev]
  resources:
  {{- range $kinds }}
  - {{ . }}/status
  {{- end }}
  verbs: [patch]
# Finished operations are deleted by their ttlSecondsAfterFinished or a table's history limit.
- apiGroups: [tandem.dev]
  resources: [{{ join ", " $operations }}]
  verbs: [delete]
# Jobs and compactions name them as owners; some clusters (OpenShift) require this right for it.
- apiGroups: [tandem.dev]
  resources:
  {{- range $kinds }}
  - {{ . }}/finalizers
  {{- end }}
  verbs: [update]
# What a LakeTable automates: compactions of the table and of its log, and drops of old rows.
- apiGroups: [tandem.dev]
  resources: [logcompactions, tablecompactions, tablereplaces]
  verbs: [create]
# The jobs. They are created once and never patched.
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [create, get, list, watch, delete]
# Where index servers answer.
- apiGroups: [""]
  resources: [services]
  verbs: [create, get, patch]
# To find out why a driver failed.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list]
{{- if not .Values.rbac.secrets }}
# A table's storage.secretRef, in the table's namespace; an index server's certificate and token.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
# What a catalog vends for a table, for the pods of one job: renewed while it runs, and deleted with it.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if and .Values.indexServers.enabled .Values.indexServers.reviews }}
# To ask index servers what they hold.
- apiGroups: [tandem.dev]
  resources: [laketables/splits]
  verbs: [get]
{{- end }}
{{- end -}}

{{/* Further rights for patterns of namespaces: to see namespaces that are created later. */}}
{{- define "tandem.rules.patterns" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end -}}

{{/* The rights of a Spark driver for its executors. */}}
{{- define "tandem.rules.driver" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [create, get, list, watch, patch, delete, deletecollection]
# Settings and disks of executors. The driver also deletes the objects that the submission created.
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims]
  verbs: [create, get, list, delete, deletecollection]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, delete, deletecollection]
{{- end -}}
