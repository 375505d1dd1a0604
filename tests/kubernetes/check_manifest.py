# SPDX-License-Identifier: Apache-2.0
"""Checks examples/kubernetes/train.yaml by the schemas of Kubernetes (kubernetes-validate), and what the schemas do not
know: that the parts of the manifest fit each other and the exit codes of Trireme.

    check_manifest.py <train.yaml> <trireme>
"""
import re
import subprocess
import sys

try:
    import kubernetes_validate
    import yaml
except ImportError as missing:
    print(f"skipped: {missing}; pip install kubernetes-validate")
    sys.exit(77)


def main(path: str, trireme: str) -> None:
    with open(path, encoding="utf-8") as file:
        documents = list(yaml.safe_load_all(file))
    for document in documents:
        version = kubernetes_validate.latest_version()
        kubernetes_validate.validate(document, version, strict=True)
        print(f"{document['kind']} {document['metadata']['name']} fits the schemas of Kubernetes {version}")
    service, job = documents
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    command = container["command"][-1]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    # Pods of an indexed job are named <job>-<index>.
    address = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert f"--master-addr {address} " in command, command
    port = int(re.search(r"--master-port (\d+)", command)[1])
    assert port == container["ports"][0]["containerPort"]
    nodes = int(re.search(r"--nnodes (\d+)", command)[1])
    assert job["spec"]["completionMode"] == "Indexed"
    assert nodes == job["spec"]["completions"] == job["spec"]["parallelism"], "all pods must run at once"
    assert '--node-rank "$JOB_COMPLETION_INDEX"' in command
    grace = int(re.search(r"--grace (\d+)", command)[1])
    assert grace + 2 < pod["terminationGracePeriodSeconds"], "the pod would be killed while it saves"
    # A policy for failures needs it, and the launcher must get the signals of the container itself.
    waits, command = command.split("exec ", 1)
    assert pod["restartPolicy"] == "Never" and command.startswith("trireme run ")
    assert f"getent hosts {address} " in waits
    codes = [rule["onExitCodes"]["values"] for rule in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert codes == [[75]]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert "--resume" in command and "/checkpoints" in mounts
    # The launcher takes this command line.
    words = command.replace('"$JOB_COMPLETION_INDEX"', "1").replace("./train", "/bin/true").split()
    words = [word.replace("/checkpoints/logs-", "/tmp/") for word in words]
    result = subprocess.run([trireme, words[1], "--dry-run", *words[2:]], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("WORLD_SIZE=8") == 4 and "RANK=4 " in result.stdout, result.stdout


main(*sys.argv[1:])
