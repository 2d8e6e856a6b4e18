{{/* How the operator, and the container that creates its user, reach etcd: options, volumes and mounts. */}}

{{- define "tandem.etcd.options" -}}
{{- if .Values.etcd.bundled.enabled }}
- --etcd-endpoint=https://{{ include "tandem.etcd" . }}.{{ .Release.Namespace }}.svc:2379
{{- else }}
{{- range .Values.etcd.endpoints }}
- --etcd-endpoint={{ . }}
{{- end }}
{{- end }}
- --etcd-prefix={{ .Values.etcd.prefix }}
{{- if or .Values.etcd.bundled.enabled .Values.etcd.tls.caSecret.name }}
- --etcd-ca=/etc/tandem/etcd-ca/ca.crt
{{- end }}
{{- if and .Values.etcd.tls.clientSecret.name (not .Values.etcd.bundled.enabled) }}
- --etcd-certificate=/etc/tandem/etcd-client/tls.crt
- --etcd-key=/etc/tandem/etcd-client/tls.key
{{- end }}
{{- if or .Values.etcd.bundled.enabled .Values.etcd.auth.user }}
- --etcd-user={{ include "tandem.etcd.user" . }}
- --etcd-password-file=/etc/tandem/etcd-user/password
{{- end }}
{{- end -}}

{{- define "tandem.etcd.user" -}}{{ default "tandem" .Values.etcd.auth.user }}{{- end -}}

{{- define "tandem.etcd.mounts" -}}
{{- if or .Values.etcd.bundled.enabled .Values.etcd.tls.caSecret.name }}
- {name: etcd-ca, mountPath: /etc/tandem/etcd-ca, readOnly: true}
{{- end }}
{{- if and .Values.etcd.tls.clientSecret.name (not .Values.etcd.bundled.enabled) }}
- {name: etcd-client, mountPath: /etc/tandem/etcd-client, readOnly: true}
{{- end }}
{{- if or .Values.etcd.bundled.enabled .Values.etcd.auth.user }}
- {name: etcd-user, mountPath: /etc/tandem/etcd-user, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tandem.etcd.volumes" -}}
{{- $etcd := .Values.etcd }}
{{- if $etcd.bundled.enabled }}
- name: etcd-ca
  secret:
    secretName: {{ include "tandem.etcd.tlsSecret" . }}
    defaultMode: 0440
    # The server's key is not mounted.
    items: [{key: ca.crt, path: ca.crt}]
- name: etcd-user
  secret:
    secretName: {{ include "tandem.etcd.userSecret" . }}
    defaultMode: 0440
    items: [{key: password, path: password}]
- name: etcd-root
  secret:
    secretName: {{ include "tandem.etcd.rootSecret" . }}
    defaultMode: 0440
    items: [{key: password, path: password}]
{{- else }}
{{- with $etcd.tls.caSecret }}
{{- if .name }}
- name: etcd-ca
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: ca.crt}]
{{- end }}
{{- end }}
{{- with $etcd.tls.clientSecret.name }}
- name: etcd-client
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end }}
{{- if $etcd.auth.user }}
- name: etcd-user
  secret:
    secretName: {{ $etcd.auth.passwordSecret.name }}
    defaultMode: 0440
    items: [{key: {{ $etcd.auth.passwordSecret.key }}, path: password}]
{{- end }}
{{- end }}
{{- end -}}
