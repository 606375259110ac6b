{{/*
The sidecar for a pod of your own chart (whole: deploy/examples/helm). Make this chart a dependency, and in the pod's template:

  spec:
    initContainers:
      {{- include "tidegate.container" .Subcharts.tidegate | nindent 6 }}
    containers:
      - name: manager
        env:
          {{- include "tidegate.env" .Subcharts.tidegate | nindent 10 }}
        volumeMounts:
          {{- include "tidegate.mounts" .Subcharts.tidegate | nindent 10 }}
    volumes:
      {{- include "tidegate.volumes" .Subcharts.tidegate | nindent 6 }}
*/}}

{{- define "tidegate.name" -}}
{{ .Values.configMap.name | default (printf "%s-tidegate" .Release.Name) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tidegate.container" -}}
- name: tidegate
  image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args: [run, --config=/etc/tidegate/tidegate.toml]
  env:
    - {name: TIDEGATE__ADMIN__LISTEN, value: {{ printf "[::]:%v" .Values.adminPort | quote }}}
    - {name: TIDEGATE__GATES__KUBERNETES__UPSTREAM, value: in_cluster}
    - {name: TIDEGATE__GATES__KUBERNETES__LISTEN, value: {{ printf "127.0.0.1:%v" .Values.port | quote }}}
    - {name: TIDEGATE__GATES__KUBERNETES__TLS__MODE, value: self_signed}
    - {name: TIDEGATE__GATES__KUBERNETES__TLS__WRITE_TO, value: /run/tidegate}
  ports:
    - {name: tidegate-admin, containerPort: {{ .Values.adminPort }}}
  startupProbe:
    exec: {command: [/tidegate, health, --config=/etc/tidegate/tidegate.toml]}
    periodSeconds: 1
    failureThreshold: 30
  resources: {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    - {name: tidegate, mountPath: /run/tidegate}
    - {name: tidegate-config, mountPath: /etc/tidegate, readOnly: true}
{{- end }}

{{- define "tidegate.env" -}}
{{- if eq .Values.mode "kubeconfig" -}}
- {name: KUBECONFIG, value: /run/tidegate/kubeconfig}
{{- else if eq .Values.mode "in-cluster" -}}
- {name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}
- {name: KUBERNETES_SERVICE_PORT, value: {{ .Values.port | quote }}}
{{- else -}}
{{- fail (printf "mode is %q, expected \"kubeconfig\" or \"in-cluster\"" .Values.mode) -}}
{{- end -}}
{{- end }}

{{- define "tidegate.mounts" -}}
- name: tidegate
  mountPath: {{ eq .Values.mode "in-cluster" | ternary "/var/run/secrets/kubernetes.io/serviceaccount" "/run/tidegate" }}
  readOnly: true
{{- end }}

{{- define "tidegate.volumes" -}}
- {name: tidegate, emptyDir: {medium: Memory}}
- {name: tidegate-config, configMap: {name: {{ include "tidegate.name" . }}}}
{{- end }}

{{- define "tidegate.podLabels" -}}
{{- .Values.podLabels | default (dict "app.kubernetes.io/instance" .Release.Name) | toYaml -}}
{{- end }}
