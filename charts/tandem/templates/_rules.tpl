{{/* The names of our kinds, as the files of their definitions have them, with a comma between. */}}
{{- define "tandem.kinds" -}}
{{- $kinds := list -}}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" -}}
{{- $kinds = base $path | trimPrefix "tandem.dev_" | trimSuffix ".yaml" | append $kinds -}}
{{- end -}}
{{- join "," $kinds -}}
{{- end -}}

{{/* All that the operator may do in a namespace. examples/cluster/rbac.yaml says the same; a test
compares. */}}
{{- define "tandem.rules" -}}
{{- $kinds := splitList "," (include "tandem.kinds" .) -}}
{{- $operations := without $kinds "laketables" -}}
# What people ask for. Patched for the finalizer that gives operations time to cancel; LakeTables
# to take off the one that an earlier release has put there.
- apiGroups: [tandem.dev]
  resources: [{{ join ", " $kinds }}]
  verbs: [get, list, watch, patch]
- apiGroups: [tandem.dev]
  resources:
  {{- range $kinds }}
  - {{ . }}/status
  {{- end }}
  verbs: [patch]
# Finished ones go when their ttlSecondsAfterFinished or a table's history limit says so.
- apiGroups: [tandem.dev]
  resources: [{{ join ", " $operations }}]
  verbs: [delete]
# Their jobs and compactions name them as owners; some clusters (OpenShift) ask for this then.
- apiGroups: [tandem.dev]
  resources:
  {{- range $kinds }}
  - {{ . }}/finalizers
  {{- end }}
  verbs: [update]
# Automatic compaction: a table's compactions are made for it.
- apiGroups: [tandem.dev]
  resources: [tablecompactions]
  verbs: [create]
# The jobs. They are written once: never patched.
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [create, get, list, watch, delete]
# To tell why a driver failed.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list]
{{- if not .Values.rbac.secrets }}
# A table's storage.secretRef, in the table's namespace.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* What it needs beside, where patterns of namespaces are served: those that come later. */}}
{{- define "tandem.rules.patterns" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end -}}
