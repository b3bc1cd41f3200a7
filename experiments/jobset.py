"""The arms of a sweep as Kubernetes JobSets: a Job of Pods each, one Pod per process of the run.

JSON, which is YAML too. Processes find each other by the names that a JobSet gives its Pods, and a
Job whose Pod has failed is started again as a whole, which goes on from the last checkpoint.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import files

PORT = 8476
# What --pods may say, and the value where it does not.
SETTINGS = {
    "image": "", "processes": 1, "gpus": 0, "tpus": 0, "accelerator": "", "topology": "",
    "claim": "", "mount": "/gossax/runs", "restarts": 3,
}  # fmt: skip
# Node labels by which GKE chooses the slices and GPUs of a Pod.
TPU_LABELS = ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology")
GPU_LABEL = "cloud.google.com/gke-accelerator"


def read(settings: str) -> dict[str, Any]:
    """Return what "image=IMAGE,processes=4,tpus=4" says, with defaults; else ValueError."""
    found = dict(SETTINGS)
    for item in filter(None, settings.split(",")):
        name, _, value = (text.strip() for text in item.partition("="))
        is_number = isinstance(SETTINGS.get(name), int)
        if name not in SETTINGS or not value or (is_number and not re.fullmatch(r"\d{1,6}", value)):
            raise ValueError(
                f"cannot read {item!r} in --pods; write name=value, of {', '.join(SETTINGS)}"
            )
        found[name] = int(value) if is_number else value
    if not found["image"] or not found["processes"]:
        raise ValueError(
            f"--pods={settings}: a Pod needs an image and a run a process; give image=IMAGE and "
            "processes=1 or more"
        )
    return found


def manifest(path: str, command: Sequence[str], pods: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JobSet of an arm; pods: see `read`."""
    slug = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:24].strip("-")
    name = "-".join(filter(None, ("gossax", slug, hashlib.sha256(path.encode()).hexdigest()[:6])))
    count, words = pods["processes"], ["python", "launch.py", *command[2:]]
    words = [word.replace("$(", "$$(") for word in words]  # else Kubernetes' variables
    # Also of one process, or JAX would look for others in a Pod with an index.
    words += [f"--coordinator_address={name}-arm-0-0.{name}:{PORT}"]
    words += [f"--num_processes={count}", "--process_id=$(JOB_COMPLETION_INDEX)"]
    devices = {"nvidia.com/gpu": pods["gpus"], "google.com/tpu": pods["tpus"]}
    labels = TPU_LABELS if pods["tpus"] else (GPU_LABEL,)
    chosen = dict(zip(labels, (pods["accelerator"], pods["topology"]), strict=False))
    container: dict[str, Any] = {
        "name": "arm",
        "image": pods["image"],
        "command": words,
        # A Pod has no name that it could listen at before it is ready.
        "env": [{"name": "JAX_COORDINATOR_BIND_ADDRESS", "value": f"0.0.0.0:{PORT}"}],
        "resources": {"limits": {device: n for device, n in devices.items() if n}},
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "nodeSelector": {label: value for label, value in chosen.items() if value},
        "containers": [container],
    }
    if pods["claim"]:
        container["volumeMounts"] = [{"name": "records", "mountPath": pods["mount"]}]
        claim = {"claimName": pods["claim"]}
        pod["volumes"] = [{"name": "records", "persistentVolumeClaim": claim}]
    job = {"parallelism": count, "completions": count, "completionMode": "Indexed"}
    job |= {"backoffLimit": 0, "template": {"spec": pod}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "annotations": {"gossax/arm": path}},
        "spec": {
            "failurePolicy": {"maxRestarts": pods["restarts"]},
            "replicatedJobs": [{"name": "arm", "replicas": 1, "template": {"spec": job}}],
        },
    }


def write(file: str, commands: Mapping[str, Sequence[str]], settings: str) -> None:
    """Write a list of JobSets for `kubectl apply`; commands: of groups, by their first arms."""
    pods = read(settings)
    items = [manifest(path, command, pods) for path, command in commands.items()]
    files.write(file, json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
    print(f"{len(items)} JobSets: {file}")
