#!/usr/bin/python3
"""packaging/kubernetes: as an API server checks it, and against the program that runs there.

usage: kubernetes_test.py BINARY    BINARY: sluice. Needs python3-yaml and python3-jsonschema
"""

import re
import subprocess
import sys
import unittest
import urllib.request
from pathlib import Path

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(f"skipped: kubernetes: {missing}")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from serving import Server  # noqa: E402

BINARY = sys.argv.pop(1)

# What the API has of these kinds, as far as it is used here: a field that is not in it is one misspelt.
TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
LABEL = {"type": "string", "maxLength": 63, "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}
PORT_NUMBER = {"type": "integer", "minimum": 1, "maximum": 65535}
PORT_NAME = {"type": "string", "maxLength": 15, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}


def record(**fields):
    """An object of these fields alone; those that are needed have a capital R behind them."""
    return {
        "type": "object",
        "properties": {name.removesuffix("R"): schema for name, schema in fields.items()},
        "required": [name.removesuffix("R") for name in fields if name.endswith("R")],
        "additionalProperties": False,
    }


def table(values):
    return {"type": "object", "additionalProperties": values}


def listing(items):
    return {"type": "array", "items": items, "minItems": 1}


LABELS = table(LABEL)
META = record(nameR={"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}, labels=LABELS, annotations=table(TEXT))
SELECTOR = record(matchLabelsR=LABELS)
PROBE = record(
    httpGetR=record(pathR=TEXT, portR={"anyOf": [PORT_NUMBER, PORT_NAME]}),
    periodSeconds=COUNT, timeoutSeconds=COUNT, failureThreshold=COUNT, initialDelaySeconds=COUNT,
)
CONTAINER = record(
    nameR=PORT_NAME, imageR=TEXT, args=listing(TEXT), command=listing(TEXT),
    env=listing(record(nameR=TEXT, value=TEXT, valueFrom=record(fieldRef=record(fieldPathR=TEXT)))),
    ports=listing(record(nameR=PORT_NAME, containerPortR=PORT_NUMBER, protocol=TEXT)),
    startupProbe=PROBE, readinessProbe=PROBE, livenessProbe=PROBE,
    resources=record(requests=table(QUANTITY), limits=table(QUANTITY)),
    securityContext=record(allowPrivilegeEscalation=FLAG, readOnlyRootFilesystem=FLAG, capabilities=record(drop=listing(TEXT))),
    volumeMounts=listing(record(nameR=TEXT, mountPathR=TEXT, subPath=TEXT, readOnly=FLAG)),
)
POD = record(
    terminationGracePeriodSeconds=COUNT,
    securityContext=record(runAsNonRoot=FLAG, runAsUser=COUNT, runAsGroup=COUNT, fsGroup=COUNT, seccompProfile=record(typeR=TEXT)),
    containersR=listing(CONTAINER),
    volumes=listing(record(
        nameR=TEXT, persistentVolumeClaim=record(claimNameR=TEXT, readOnly=FLAG), secret=record(secretNameR=TEXT), emptyDir={"type": "object"},
    )),
)
SPECS = {
    ("apps/v1", "Deployment"): record(
        replicas=COUNT, selectorR=SELECTOR, templateR=record(metadataR=record(labelsR=LABELS, annotations=table(TEXT)), specR=POD),
        strategy=record(type=TEXT, rollingUpdate=record(maxUnavailable=COUNT, maxSurge=COUNT)),
    ),
    ("v1", "Service"): record(
        selector=LABELS, portsR=listing(record(name=PORT_NAME, portR=PORT_NUMBER, targetPort={"anyOf": [PORT_NUMBER, PORT_NAME]}, protocol=TEXT)),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): record(
        selectorR=SELECTOR, targetPortsR=listing(record(numberR=PORT_NUMBER)),
        endpointPickerRefR=record(nameR=TEXT, group=TEXT, kind=TEXT, port=record(numberR=PORT_NUMBER), failureMode={"enum": ["FailOpen", "FailClose"]}),
    ),
    ("autoscaling/v2", "HorizontalPodAutoscaler"): record(
        scaleTargetRefR=record(apiVersion=TEXT, kindR=TEXT, nameR=TEXT), minReplicas=COUNT, maxReplicasR=COUNT,
        metrics=listing(record(typeR={"enum": ["Pods"]}, podsR=record(
            metricR=record(nameR=TEXT), targetR=record(typeR={"enum": ["AverageValue"]}, averageValueR=QUANTITY)))),
        behavior=table(record(stabilizationWindowSeconds=COUNT, policies=listing(
            record(typeR={"enum": ["Pods", "Percent"]}, valueR=COUNT, periodSecondsR={"type": "integer", "minimum": 1, "maximum": 1800})))),
    ),
}


def manifests():
    out = {}
    for path in sorted((ROOT / "packaging/kubernetes").glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            out[manifest["kind"]] = manifest
    return out


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.all = manifests()
        self.deployment = self.all["Deployment"]["spec"]
        self.pod = self.deployment["template"]
        (self.container,) = self.pod["spec"]["containers"]
        self.flags = dict(arg.removeprefix("--").partition("=")[::2] for arg in self.container["args"])

    def test_fields_and_their_types(self):
        self.assertEqual(set(self.all), {kind for _, kind in SPECS})
        for kind, manifest in self.all.items():
            with self.subTest(kind):
                spec = SPECS[manifest["apiVersion"], kind]
                jsonschema.Draft7Validator.check_schema(spec)
                jsonschema.validate(manifest, record(apiVersionR=TEXT, kindR=TEXT, metadataR=META, specR=spec), jsonschema.Draft7Validator)

    def test_what_is_wrong_is_found(self):
        spec = SPECS["apps/v1", "Deployment"]
        for break_it in (
            lambda one: one.pop("selector"),
            lambda one: one["template"]["spec"]["containers"][0]["readinessProbe"].update(periodSecond=1),
            lambda one: one["template"]["spec"]["containers"][0]["ports"][0].update(containerPort="8080"),
            lambda one: one["template"]["metadata"]["labels"].update(a=True),
        ):
            broken = manifests()["Deployment"]["spec"]
            break_it(broken)
            with self.assertRaises(jsonschema.ValidationError):
                jsonschema.validate(broken, spec, jsonschema.Draft7Validator)

    def test_they_mean_each_other(self):
        labels = self.pod["metadata"]["labels"].items()
        for selector in (self.deployment["selector"]["matchLabels"], self.all["Service"]["spec"]["selector"],
                         self.all["InferencePool"]["spec"]["selector"]["matchLabels"]):
            self.assertLessEqual(selector.items(), labels)
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.assertEqual(len(set(ports.values())), len(ports))
        for port in self.all["Service"]["spec"]["ports"]:
            self.assertIn(port["targetPort"], ports)
        self.assertEqual(self.all["InferencePool"]["spec"]["targetPorts"], [{"number": ports["http"]}])
        target = self.all["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
        self.assertEqual(target, {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.all["Deployment"]["metadata"]["name"]})
        volumes = [volume["name"] for volume in self.pod["spec"]["volumes"]]
        self.assertEqual(sorted(mount["name"] for mount in self.container["volumeMounts"]), sorted(volumes))
        for key, port in (("kv-events", "kv-events"), ("kv-events-replay", "kv-replay")):
            self.assertEqual(self.flags[key], f"tcp://*:{ports[port]}")
        self.assertEqual(self.flags["kv-events-topic"], f"kv@$(POD_IP):{ports['http']}@{self.flags['alias']}")
        self.assertEqual(self.pod["metadata"]["annotations"]["prometheus.io/port"], str(ports["http"]))

    def test_answers_have_the_time_that_they_are_promised(self):
        needed = int(self.flags["drain-delay"]) + int(self.flags["drain"])
        self.assertGreaterEqual(self.pod["spec"]["terminationGracePeriodSeconds"], needed + 10)
        probe = self.container["readinessProbe"]
        self.assertGreater(int(self.flags["drain-delay"]), 2 * probe["periodSeconds"] * probe["failureThreshold"])

    def test_the_program_knows_the_flags_and_paths(self):
        said = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
        for flag in self.flags:
            self.assertRegex(said, rf"(?m)[\s,]--{flag}\b")
        image = (ROOT / "packaging/serve-container").read_text(encoding="utf-8")
        self.assertIn("--port 8080", image)
        keys = next(mount for mount in self.container["volumeMounts"] if mount["name"] == "keys")
        self.assertIn(keys["mountPath"], image)
        harmless = [arg for arg in self.container["args"] if not arg.startswith(("--model", "--kv-events", "--drain"))]
        with Server(BINARY, [*harmless, "-t", "1", "-c", "256", "--log", "off", "--api-key", "secret"]) as server:
            for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                with urllib.request.urlopen(server.address + self.container[name]["httpGet"]["path"]) as reply:
                    self.assertEqual(reply.status, 200)
            with urllib.request.urlopen(server.address + "/metrics") as reply:
                metrics = reply.read().decode()
        for metric in self.all["HorizontalPodAutoscaler"]["spec"]["metrics"]:
            self.assertTrue(re.search(rf"(?m)^{metric['pods']['metric']['name']} ", metrics))


if __name__ == "__main__":
    unittest.main(verbosity=2)
