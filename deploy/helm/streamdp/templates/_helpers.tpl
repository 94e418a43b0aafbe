{{- define "streamdp.image" -}}
{{- $of := .Values.image -}}
{{- if $of.digest }}{{ $of.repository }}@{{ $of.digest }}{{ else }}{{ $of.repository }}:{{ default .Chart.AppVersion $of.tag }}{{ end -}}
{{- end }}

{{- /* The name of one of the parts: run, assemble or serve. */ -}}
{{- define "streamdp.name" -}}
{{- $base := trunc 44 .root.Release.Name | trimSuffix "-" -}}
{{- if eq .part "run" }}{{ $base }}{{ else }}{{ $base }}-{{ .part }}{{ end -}}
{{- end }}

{{- define "streamdp.selector" -}}
app.kubernetes.io/name: streamdp
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "streamdp.labels" -}}
{{ include "streamdp.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- /* streamdp.toml: what the chart sets, and `config` as it is. */ -}}
{{- define "streamdp.toml" -}}
{{- $kafka := .Values.kafka -}}
{{- $transport := dict "kind" "kafka" "bootstrap" $kafka.bootstrap -}}
{{- $protocol := ternary "SSL" "PLAINTEXT" $kafka.tls.enabled -}}
{{- if $kafka.sasl.mechanism -}}
{{- $protocol = printf "SASL_%s" $protocol -}}
{{- $_ := set $transport "sasl_mechanism" $kafka.sasl.mechanism -}}
{{- $_ := set $transport "username" $kafka.sasl.username -}}
{{- $_ := set $transport "password_file" (printf "/run/secrets/streamdp/%s" $kafka.sasl.passwordKey) -}}
{{- end -}}
{{- if ne $protocol "PLAINTEXT" }}{{ $_ := set $transport "security_protocol" $protocol }}{{ end -}}
{{- if and $kafka.tls.enabled $kafka.tls.caKey -}}
{{- $_ := set $transport "ca_file" (printf "/run/secrets/streamdp/%s" $kafka.tls.caKey) -}}
{{- end -}}
{{- $transport = merge $transport $kafka.extra -}}
{{- $own := dict "app" .Values.app "transport" $transport
    "http" (dict "listen" "0.0.0.0:8080") "operations" (dict "listen" "0.0.0.0:8081") -}}
{{- /* Helm reads every number as a float; a whole one is written as such. */ -}}
{{- regexReplaceAll "(?m)= (-?[0-9]+)\\.0$" (mergeOverwrite $own (deepCopy .Values.config) | toToml) "= ${1}" -}}
{{- end }}

{{- define "streamdp.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "streamdp.mounts" -}}
- {name: config, mountPath: /etc/streamdp, readOnly: true}
- {name: secrets, mountPath: /run/secrets/streamdp, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}
