{{/* The operator's rights in a namespace. examples/cluster/rbac.yaml grants the same; a test
compares. */}}
{{- define "tandem.rules" -}}
# The resources of users. Patched for the finalizer that gives operations time to cancel; LakeTables
# to remove the one that an earlier release added.
- apiGroups: [tandem.dev]
  resources: [laketables, tableingests, tablecompactions, tableupdates, segmentrewrites]
  verbs: [get, list, watch, patch]
- apiGroups: [tandem.dev]
  resources:
  - laketables/status
  - tableingests/status
  - tablecompactions/status
  - tableupdates/status
  - segmentrewrites/status
  verbs: [patch]
# Finished operations are deleted by their ttlSecondsAfterFinished or a table's history limit.
- apiGroups: [tandem.dev]
  resources: [tableingests, tablecompactions, tableupdates, segmentrewrites]
  verbs: [delete]
# Jobs and compactions name them as owners; some clusters (OpenShift) require this right for it.
- apiGroups: [tandem.dev]
  resources:
  - laketables/finalizers
  - tableingests/finalizers
  - tablecompactions/finalizers
  - tableupdates/finalizers
  - segmentrewrites/finalizers
  verbs: [update]
# Automatic compaction: the operator creates a table's compactions.
- apiGroups: [tandem.dev]
  resources: [tablecompactions]
  verbs: [create]
# The jobs. They are created once and never patched.
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [create, get, list, watch, delete]
# To find out why a driver failed.
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

{{/* Further rights for patterns of namespaces: to see namespaces that are created later. */}}
{{- define "tandem.rules.patterns" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end -}}
