"""Manifests of JobSets, against the fields that Kubernetes requires of them."""

import json
import os
import re

from tests.launcher import refused

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# Where a manifest must have what; a pattern, or a value.
REQUIRED = {
    ("apiVersion",): "jobset.x-k8s.io/v1alpha2",
    ("kind",): "JobSet",
    ("metadata", "name"): LABEL,
    ("spec", "failurePolicy", "maxRestarts"): 5,
    ("spec", "replicatedJobs", 0, "name"): LABEL,
    ("spec", "replicatedJobs", 0, "template", "spec", "completionMode"): "Indexed",
    ("spec", "replicatedJobs", 0, "template", "spec", "parallelism"): 4,
    ("spec", "replicatedJobs", 0, "template", "spec", "completions"): 4,
    ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "restartPolicy"): "Never",
}


ARMS = ("--config=config.py", "--config.runtime=mesh", "--sweep", "--seeds=2", "--workdir=runs/a")
PODS = "image=me/gossax:1,processes=4,tpus=4,accelerator=tpu-v5-lite-podslice,topology=4x4"


def test_every_arm_is_a_jobset_with_a_pod_per_process(call, tmp_path):
    home = os.path.expanduser("~")
    pods = f"{PODS},claim=disk,mount={home},restarts=5"
    flags = ("--config.communication=0", "--workdir=~/a", "--jobset=a.json", f"--pods={pods}")
    code, shown, err = call(*ARMS, *flags)
    assert (code, shown, err) == (0, "4 JobSets: a.json\n", "")
    assert not (tmp_path / "runs").exists()
    listed = json.loads((tmp_path / "a.json").read_text())
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    commands = {}
    for item in listed["items"]:
        for place, wanted in REQUIRED.items():
            found = item
            for key in place:
                found = found[key]
            assert wanted.fullmatch(found) if isinstance(wanted, re.Pattern) else found == wanted
        name = item["metadata"]["name"]
        assert len(f"{name}-arm-0-3-abcde") <= 63  # of a Pod
        (pod,) = [job["template"]["spec"]["template"]["spec"] for job in
                  item["spec"]["replicatedJobs"]]  # fmt: skip
        assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == {"google.com/tpu": 4}
        assert container["volumeMounts"][0]["mountPath"] == home
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "disk"
        commands[name] = container["command"]
        assert f"--workdir={os.path.expanduser('~/a')}" in commands[name]
        assert commands[name][-4:] == [
            f"--arm={item['metadata']['annotations']['gossax/arm']}",
            f"--coordinator_address={name}-arm-0-0.{name}:8476",
            "--num_processes=4",
            "--process_id=$(JOB_COMPLETION_INDEX)",
        ]
    assert len(commands) == 4
    code, printed, _ = call(*ARMS, "--config.communication=0", "--print_commands")
    assert code == 0 and len(printed.splitlines()) == 4
    for command in commands.values():
        assert command[-4] in printed and "--pods" not in " ".join(command)
    assert next(iter(commands.values()))[:3] == ["python", "launch.py", "--config=config.py"]


def test_impossible_jobsets_are_refused(call, tmp_path):
    for flags, words in (
        (("--pods=image=i",), "--pods belongs to --jobset; give both or neither"),
        (("--jobset=a.json",), "a Pod needs an image"),
        (("--jobset=a.json", "--pods=image=i,gpus=many"), "cannot read 'gpus=many' in --pods"),
        (("--jobset=a.json", "--pods=image=i,gpu=1"), "write name=value, of image, processes"),
        (("--jobset=a.json", "--pods=image=i", "--overwrite"), "leave out --overwrite"),
        (("--jobset=a.json", "--pods=image=i,processes=2", "--config.runtime=simulate"),
         "its workers live in one process, and there are 2; use runtime='mesh'"),
        (("--jobset=a.json", "--pods=image=i,gpus=1,tpus=2"), "no node has gpus and tpus"),
        (("--jobset=a.json", "--pods=image=i,topology=2x4"), "topology is of tpus; give them"),
        (("--jobset=a.json", "--pods=image=i,mount=/x"), "mount is of a claim; give both"),
        (("--jobset=a.json", "--pods=image=i,claim=c", "--workdir=/tmp/a"),
         "is not on the volume, which is mounted at /gossax/runs"),
        (("--jobset=no/a.json", "--pods=image=i"), "there is no folder no; make it first"),
    ):  # fmt: skip
        refused(call(*ARMS, *flags), words)
        assert not (tmp_path / "a.json").exists()
