"""An operator written with kopf that makes a ConfigMap for each widget: it reads, creates after a 404, and retries soon."""

import kopf
from kubernetes import client, config

config.load_kube_config()
core = client.CoreV1Api()


@kopf.on.create("tidegate.test", "v1", "widgets")
def ensure(name, namespace, **_):
    try:
        core.read_namespaced_config_map(name, namespace)
        return
    except client.ApiException as error:
        if error.status != 404:
            raise kopf.TemporaryError(f"read: {error.status}", delay=0.05) from error
    try:
        core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name)))
    except client.ApiException as error:
        raise kopf.TemporaryError(f"create: {error.status}", delay=0.05) from error
