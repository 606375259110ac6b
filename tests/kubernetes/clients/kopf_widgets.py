"""An operator written with kopf: it copies spec.value to status.observed, and says when an object is gone."""

import kopf


@kopf.on.create("tidegate.test", "v1", "widgets")
@kopf.on.update("tidegate.test", "v1", "widgets", field="spec.value")
def observe(spec, patch, **_):
    patch.status["observed"] = spec["value"]


@kopf.on.delete("tidegate.test", "v1", "widgets")
def gone(name, **_):
    print("gone", name, flush=True)
