{{- define "agentguard.labels" -}}
app.kubernetes.io/name: agentguard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "agentguard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "agentguard.environment" -}}
{{- range $name, $key := .Values.environment }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $.Values.secret }}, key: {{ $key }}}}
{{- end }}
{{- end }}

{{- define "agentguard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "agentguard.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Configuration of the proxy; with a judge, its policy has the address of the judge. */}}
{{- define "agentguard.configuration" -}}
{{- $configuration := deepCopy .Values.configuration }}
{{- if .Values.judge.enabled }}
{{- $url := printf "http://%s-judge:%d/v1" .Release.Name (int .Values.judge.port) }}
{{- $judge := dict "base_url" $url "model" .Values.judge.model }}
{{- $configuration = mergeOverwrite (dict "guard" (dict "policy" (dict "judge" $judge))) $configuration }}
{{- end }}
{{- toYaml $configuration }}
{{- end }}
