{{- define "tandem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name, followed by the chart's unless contained in it; short enough for suffixes. */}}
{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "tandem.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Call with (list $ "component"). */}}
{{- define "tandem.selector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ include "tandem.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "tandem.labels" -}}
{{- $root := first . -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Call with (list $image $defaultTag). */}}
{{- define "tandem.image" -}}
{{- $image := first . -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default (last .) $image.tag }}{{ end -}}
{{- end -}}

{{- define "tandem.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (printf "%s-operator" (include "tandem.fullname" .)) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is required where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* "true" where a ClusterRole is needed: all namespaces are served, or patterns. */}}
{{- define "tandem.clusterWide" -}}
{{- if not .Values.watch.namespaces -}}true
{{- else if include "tandem.hasPatterns" . -}}true
{{- end -}}
{{- end -}}

{{- define "tandem.hasPatterns" -}}
{{- range .Values.watch.namespaces }}{{ if regexMatch "[*?]" . }}true{{ end }}{{ end -}}
{{- end -}}

{{/* A list in JSON, since templates return text. */}}
{{- define "tandem.jobNamespaces" -}}
{{- $names := .Values.jobs.namespaces -}}
{{- if not $names -}}
{{- range .Values.watch.namespaces -}}
{{- if not (regexMatch "[*?]" .) }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end -}}

{{- define "tandem.etcd" -}}{{ include "tandem.fullname" . }}-etcd{{- end -}}
{{- define "tandem.etcd.tlsSecret" -}}
{{- default (printf "%s-tls" (include "tandem.etcd" .)) .Values.etcd.bundled.tlsSecret -}}
{{- end -}}
{{- define "tandem.etcd.rootSecret" -}}
{{- default (printf "%s-root" (include "tandem.etcd" .)) .Values.etcd.bundled.rootSecret -}}
{{- end -}}
{{- define "tandem.etcd.userSecret" -}}
{{- default (printf "%s-user" (include "tandem.etcd" .)) .Values.etcd.bundled.userSecret -}}
{{- end -}}

{{/* Refuses values that contradict each other, with a remedy. */}}
{{- define "tandem.check" -}}
{{- $etcd := .Values.etcd -}}
{{- if eq .Values.locks "etcd" -}}
{{- if and $etcd.endpoints $etcd.bundled.enabled -}}
{{- fail "etcd.endpoints and etcd.bundled.enabled exclude each other: name your etcd, or run the bundled one" -}}
{{- end -}}
{{- if not (or $etcd.endpoints $etcd.bundled.enabled) -}}
{{- fail "the locks need an etcd: set etcd.endpoints to yours, or etcd.bundled.enabled=true to try Tandem out" -}}
{{- end -}}
{{- if and $etcd.auth.user (not $etcd.auth.passwordSecret.name) (not $etcd.bundled.enabled) -}}
{{- fail "etcd.auth.user needs etcd.auth.passwordSecret.name" -}}
{{- end -}}
{{- else -}}
{{- if or $etcd.endpoints $etcd.bundled.enabled -}}
{{- fail "locks: in-process needs no etcd: leave etcd.endpoints and etcd.bundled.enabled out" -}}
{{- end -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- fail "locks: in-process is safe with replicaCount: 1 only" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.workers.spark (regexMatch "^(1(\\.[0-9]+)?Gi?|1?[0-9]{1,3}Mi?)$" (dig "limits" "memory" "" .Values.resources | toString)) -}}
{{- fail "workers.spark needs resources.limits.memory of at least 2Gi" -}}
{{- end -}}
{{- if and .Values.workers.spark (eq (toString .Values.jobs.small) "0") -}}
{{- fail "workers.spark is for small jobs, and jobs.small is 0: change one of them" -}}
{{- end -}}
{{- end -}}
