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
    {{- with .Values.egress }}
    {{- if .presets }}
    - {name: TIDEGATE__EGRESS__LISTEN, value: {{ printf "127.0.0.1:%v" .port | quote }}}
    {{- end }}
    {{- range .presets }}
    - {name: TIDEGATE__GATES__{{ upper . }}__PRESET, value: {{ . }}}
    {{- if $.Values.egress.intercept }}
    - {name: TIDEGATE__GATES__{{ upper . }}__INTERCEPT, value: "true"}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- if include "tidegate.intercepts" . }}
    - {name: TIDEGATE__EGRESS__CA__KEEP, value: /run/tidegate-keys}
    {{- end }}
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
    {{- if include "tidegate.intercepts" . }}
    - {name: tidegate-keys, mountPath: /run/tidegate-keys}
    {{- end }}
{{- end }}

{{- define "tidegate.intercepts" -}}
{{- if and .Values.egress.presets .Values.egress.intercept }}true{{ end -}}
{{- end }}

{{- define "tidegate.folder" -}}
{{ eq .Values.mode "in-cluster" | ternary "/var/run/secrets/kubernetes.io/serviceaccount" "/run/tidegate" }}
{{- end }}

{{- define "tidegate.noProxy" -}}
$(KUBERNETES_SERVICE_HOST),localhost,127.0.0.1,::1,.svc,.cluster.local,kubernetes,kubernetes.default,169.254.169.254,169.254.170.2,169.254.170.23,fd00:ec2::254,fd00:ec2::23,fd20:ce::254,metadata.google.internal,168.63.129.16
{{- range .Values.egress.noProxy }},{{ . }}{{ end -}}
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
{{- if .Values.egress.presets }}
{{- range list "HTTPS_PROXY" "https_proxy" }}
- {name: {{ . }}, value: {{ printf "http://127.0.0.1:%v" $.Values.egress.port | quote }}}
{{- end }}
{{- range list "NO_PROXY" "no_proxy" }}
- {name: {{ . }}, value: {{ include "tidegate.noProxy" $ | quote }}}
{{- end }}
- {name: NODE_USE_ENV_PROXY, value: "1"}
{{- end }}
{{- if include "tidegate.intercepts" . }}
{{- $folder := include "tidegate.folder" . }}
- {name: SSL_CERT_DIR, value: {{ printf "/etc/ssl/certs:/etc/pki/tls/certs:%s/egress/certs" $folder | quote }}}
- {name: NODE_EXTRA_CA_CERTS, value: {{ $folder }}/egress/ca.crt}
{{- range list "AWS_CA_BUNDLE" "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE" "CURL_CA_BUNDLE" "GIT_SSL_CAINFO" "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" "HTTPLIB2_CA_CERTS" "REQUESTS_CA_BUNDLE" }}
- {name: {{ . }}, value: {{ $folder }}/egress/bundle.crt}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.mounts" -}}
- name: tidegate
  mountPath: {{ include "tidegate.folder" . }}
  readOnly: true
{{- end }}

{{- define "tidegate.volumes" -}}
- {name: tidegate, emptyDir: {medium: Memory}}
- {name: tidegate-config, configMap: {name: {{ include "tidegate.name" . | quote }}}}
{{- if include "tidegate.intercepts" . }}
- {name: tidegate-keys, emptyDir: {medium: Memory}}
{{- end }}
{{- end }}

{{- define "tidegate.podLabels" -}}
{{- .Values.podLabels | default (dict "app.kubernetes.io/instance" .Release.Name) | toYaml -}}
{{- end }}
