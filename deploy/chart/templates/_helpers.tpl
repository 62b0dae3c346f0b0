{{/* The image of the operator, of its tests, and of the Job that uninstalls. */}}
{{- define "dovetail.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Policies, accounts and leases name the namespace. */}}
{{- define "dovetail.namespace" -}}
{{- if ne .Release.Namespace "dovetail-system" -}}
{{- fail "Dovetail is installed into the namespace dovetail-system: --namespace dovetail-system --create-namespace" -}}
{{- end -}}
{{- .Release.Namespace -}}
{{- end -}}

{{/* The pod of a Job or a test: like the operator's, as Pod Security "restricted" asks for. Takes the context, an account and
arguments. */}}
{{- define "dovetail.pod" -}}
serviceAccountName: {{ .account }}
restartPolicy: Never
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .root.Values.operator.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
tolerations:
  - {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
  - {key: dovetail.dev/not-ready, operator: Exists, effect: NoSchedule}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: dovetail
    image: {{ include "dovetail.image" .root }}
    {{- with .root.Values.image.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    args: {{ toJson .args }}
    resources:
      requests: {cpu: 50m, memory: 96Mi}
      limits: {memory: 256Mi}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
{{- end -}}
