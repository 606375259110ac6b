"""The script of the clients in every language, with the official Python client: `script.py NAMESPACE NAME`."""

import json
import sys
import threading

from kubernetes import client, config, watch

config.load_incluster_config()
namespace, name = sys.argv[1:]
core = client.CoreV1Api()
mine = {"namespace": namespace, "field_selector": f"metadata.name={name}"}


def reason(call, *args):
    try:
        return str(call(*args))
    except client.ApiException as error:
        return f"{error.status} {json.loads(error.body)['reason']}"


def look(version):
    for event in watch.Watch().stream(core.list_namespaced_config_map, resource_version=version, **mine):
        events.append(f"{event['type']} {event['object'].data['value']}")
        if event["type"] == "DELETED":
            return


events = []
found = core.list_namespaced_config_map(**mine)
print("list", len(found.items))
looking = threading.Thread(target=look, args=(found.metadata.resource_version,))
looking.start()
one = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data={"value": "one"})
print("created", core.create_namespaced_config_map(namespace, one).data["value"])
print("patched", core.patch_namespaced_config_map(name, namespace, {"data": {"value": "two"}}).data["value"])
print("list", len(core.list_namespaced_config_map(**mine).items))
print("create again:", reason(core.create_namespaced_config_map, namespace, one))
print("get absent:", reason(core.read_namespaced_config_map, f"{name}-absent", namespace))
core.delete_namespaced_config_map(name, namespace)
print("deleted")
looking.join()
print("watch", ", ".join(events))
print("list", len(core.list_namespaced_config_map(**mine).items))
