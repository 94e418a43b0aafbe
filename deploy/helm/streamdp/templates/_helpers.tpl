{{- /* `config` as JSON. */ -}}
{{- define "streamdp.config" -}}
{{- if not .Values.config -}}
{{- fail "config: expected the text of streamdp.toml (--set-file config=streamdp.toml), got nothing" -}}
{{- end -}}
{{- $config := fromToml .Values.config -}}
{{- if $config.Error }}{{ fail (printf "config: expected TOML, got %s" $config.Error) }}{{ end -}}
{{- if not $config.streams }}{{ fail "config: expected a table [streams.NAME], got none" }}{{ end -}}
{{- $kind := dig "transport" "kind" "" $config -}}
{{- if ne $kind "kafka" -}}
{{- fail (printf "config: [transport] kind: expected \"kafka\", for pods have no disk that lasts; got %q" $kind) -}}
{{- end -}}
{{- toJson $config -}}
{{- end }}

{{- /* The parts that are installed, with a blank between two. */ -}}
{{- define "streamdp.parts" -}}
{{- $config := include "streamdp.config" . | fromJson -}}
{{- $parts := list -}}
{{- if .Values.run.enabled }}{{ $parts = append $parts "run" }}{{ end -}}
{{- if and .Values.assemble.enabled $config.assemblies }}{{ $parts = append $parts "assemble" }}{{ end -}}
{{- if .Values.serve.enabled }}{{ $parts = append $parts "serve" }}{{ end -}}
{{- join " " $parts -}}
{{- end }}

{{- /* Below, an argument is a dictionary of `root` and `part`. */ -}}

{{- /* The objects of `run` have the release's name. */ -}}
{{- define "streamdp.name" -}}
{{- $release := trunc 44 .root.Release.Name | trimSuffix "-" -}}
{{- if eq .part "run" }}{{ $release }}{{ else }}{{ $release }}-{{ .part }}{{ end -}}
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

{{- define "streamdp.image" -}}
{{- $image := .root.Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{- /* The Secret whose keys are files; `serve` may have one of its own. */ -}}
{{- define "streamdp.secret" -}}
{{- (index .root.Values .part).secretsName | default .root.Values.secretsName -}}
{{- end }}

{{- /* The table of a part's listener, as JSON. */ -}}
{{- define "streamdp.listener" -}}
{{- $config := include "streamdp.config" .root | fromJson -}}
{{- get $config (ternary "http" "operations" (eq .part "serve")) | default dict | toJson -}}
{{- end }}

{{- /* What every pod's spec has, but its containers. */ -}}
{{- define "streamdp.pod" -}}
{{ mergeOverwrite (deepCopy .root.Values.pod) ((index .root.Values .part).pod | default dict) | toYaml }}
serviceAccountName: {{ include "streamdp.name" (dict "root" .root "part" "run") }}
volumes:
  - name: config
    configMap: {name: {{ include "streamdp.name" (dict "root" .root "part" "config") }}}
  {{- with include "streamdp.secret" . }}
  - name: secrets
    secret: {secretName: {{ . }}, defaultMode: 288} # 0440
  {{- end }}
  - name: tmp
    emptyDir: {medium: Memory, sizeLimit: 64Mi}
  {{- with .root.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* What every container has; `own` is what one of them has by values. */ -}}
{{- define "streamdp.container" -}}
image: {{ include "streamdp.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{ mergeOverwrite (deepCopy .root.Values.container) (.own | default dict) | toYaml }}
env:
  - {name: STREAMDP__HTTP__LISTEN, value: "0.0.0.0:8080"}
  - {name: STREAMDP__OPERATIONS__LISTEN, value: "0.0.0.0:8081"}
  {{- if has .part (list "run" "assemble") }}
  - name: STREAMDP__SERVICE__WORKER # started again, it takes its own partitions back at once
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- end }}
  {{- with .root.Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - {name: config, mountPath: /etc/streamdp, readOnly: true}
  {{- if include "streamdp.secret" . }}
  - {name: secrets, mountPath: /run/secrets/streamdp, readOnly: true}
  {{- end }}
  - {name: tmp, mountPath: /tmp}
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
