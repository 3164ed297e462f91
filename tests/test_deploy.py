"""The files of deploy/, parsed without Docker, a cluster or a cloud: their flags, ports, keys and paths are those there are."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest import mock

import yaml
from absl.testing import parameterized
from documented import problems
from tiny_predictor import model_folder

from t5suite.testing import exits_with, parse_flags, run_cli, served_model

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
IMAGE = (DEPLOY / "Dockerfile").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
KEY = "T5SUITE_API_KEY"
DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "serve.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SKY = yaml.safe_load((DEPLOY / "sky.yaml").read_text())
# docs.skypilot.co/en/latest/reference/yaml-spec.html
SKY_KEYS = {
    "name", "workdir", "num_nodes", "resources", "envs", "secrets", "volumes", "file_mounts", "setup", "run", "config", "service",
}  # fmt: skip
SKY_RESOURCES = {
    "infra", "accelerators", "accelerator_args", "cpus", "memory", "instance_type", "use_spot", "disk_size", "disk_tier",
    "network_tier", "max_hourly_cost", "ports", "image_id", "labels", "any_of", "ordered", "job_recovery", "autostop",
}  # fmt: skip


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their words, continued lines joined, comments left out."""
    joined = IMAGE.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def words_of(instruction: str) -> list[str]:
    """The JSON list behind an instruction, which no shell reads."""
    (text,) = [text for name, text in instructions() if name == instruction]
    return json.loads(text[text.index("[") :])


def flags_of(words: list[str]) -> dict[str, str]:
    """`{flag: value}` of the words of a command, whose flags all have a value."""
    text = " ".join(words).replace("=", " ")
    return dict(re.findall(r"--(\w+) (\S+)", text))


IMAGE_WORDS = words_of("ENTRYPOINT") + words_of("CMD")
IMAGE_FLAGS = flags_of(IMAGE_WORDS)
POD_WORDS = CONTAINER["command"] + CONTAINER["args"]
POD_FLAGS = flags_of(POD_WORDS)


def status_of(url: str, path: str, host: str) -> int:
    """The status of a request without a key, under another host's name."""
    request = urllib.request.Request(f"{url}{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


class DockerfileTest(parameterized.TestCase):
    def test_its_command_is_one_of_t5suite_serve_at_the_exposed_port(self):
        self.assertEqual(IMAGE_WORDS[:2], ["t5suite", "serve"])
        self.assertEmpty(problems(shlex.join(IMAGE_WORDS)))
        (exposed,) = [text for name, text in instructions() if name == "EXPOSE"]
        self.assertEqual((IMAGE_FLAGS["host"], IMAGE_FLAGS["port"]), ("0.0.0.0", exposed))

    def test_pip_installs_extras_that_there_are_in_the_tested_versions(self):
        installed = [
            re.findall(r"pip install .*", part)
            for name, text in instructions()
            if name == "RUN"
            for part in text.split("&&")
        ]
        commands = [shlex.split(lines[0]) for lines in installed if lines]
        extras = [re.fullmatch(r"\.\[(.+)\]", word) for command in commands for word in command]
        (found,) = filter(None, extras)
        names = found[1].split(",")
        self.assertIn("serve", names)
        self.assertEmpty(set(names) - set(EXTRAS))
        self.assertLen(commands, 2)
        self.assertIn("constraints.txt", commands[-1])

    def test_torch_alone_comes_from_the_index_of_the_argument(self):
        (grep,) = re.findall(r"grep .* > \S+", IMAGE)
        found = subprocess.run(["sh", "-c", grep.partition(" > ")[0]], cwd=ROOT, capture_output=True, text=True)
        self.assertRegex(found.stdout, r"\Atorch==[\d.]+\n\Z")
        self.assertEqual(IMAGE.count('--index-url "${TORCH_INDEX}"'), 1)
        self.assertIn("ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu\n", IMAGE)

    def test_the_server_is_not_root_and_no_key_stands_in_the_image(self):
        names = [name for name, _ in instructions()]
        users = [text for name, text in instructions() if name == "USER"]
        self.assertEqual(users, [str(POD["securityContext"]["runAsUser"])])
        self.assertLess(names.index("USER"), names.index("ENTRYPOINT"))
        self.assertEmpty([text for name, text in instructions() if KEY in text])

    @parameterized.parameters((200, 0), (503, 1), (401, 1))
    def test_its_health_check_asks_the_open_route_and_fails_when_that_does(self, status, code):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(status)
                self.end_headers()

            def log_message(self, *words):
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.handle_request, daemon=True).start()
            _, flag, program = words_of("HEALTHCHECK")
            (port,) = re.findall(r"127\.0\.0\.1:(\d+)", program)
            self.assertEqual(port, IMAGE_FLAGS["port"])
            program = program.replace(f":{port}/", f":{server.server_port}/")
            done = subprocess.run([sys.executable, "-S", flag, program], capture_output=True, timeout=60)
        self.assertEqual(done.returncode, code)
        self.assertEqual(asked, ["/health"])


class KubernetesTest(parameterized.TestCase):
    def test_its_command_is_that_of_the_image_with_flags_that_there_are(self):
        self.assertEqual(CONTAINER["command"], words_of("ENTRYPOINT")[:2])
        self.assertEmpty(problems(shlex.join(POD_WORDS)))
        for name in ("host", "port"):
            self.assertEqual(POD_FLAGS[name], IMAGE_FLAGS[name])

    def test_the_port_is_the_same_everywhere(self):
        self.assertEqual(CONTAINER["ports"], [{"name": "http", "containerPort": int(POD_FLAGS["port"])}])
        (port,) = SERVICE["spec"]["ports"]
        self.assertEqual(port["targetPort"], "http")

    def test_the_service_finds_the_pods(self):
        labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
        self.assertEqual((DEPLOYMENT["kind"], SERVICE["kind"]), ("Deployment", "Service"))
        self.assertEqual(SERVICE["spec"]["selector"], labels)
        self.assertEqual(DEPLOYMENT["spec"]["selector"]["matchLabels"], labels)

    def test_probes_ask_a_route_that_answers_without_a_key_under_the_pods_address(self):
        probes = [CONTAINER[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
        self.assertEqual({probe["port"] for probe in probes}, {"http"})
        with (
            mock.patch.dict(os.environ, {KEY: "a key"}),
            served_model(model_folder(), "--use_cpu") as url,
        ):
            for probe in probes:
                self.assertEqual(status_of(url, probe["path"], "10.1.2.3:8000"), 200)
            self.assertEqual(status_of(url, "/metrics", "10.1.2.3:8000"), 401)

    def test_the_key_comes_from_the_secret_that_the_first_lines_make(self):
        variables = {entry["name"]: entry for entry in CONTAINER["env"]}
        secret = variables[KEY]["valueFrom"]["secretKeyRef"]
        (made,) = re.findall(r"create secret generic (\S+) --from-file=([\w-]+)=", (DEPLOY / "serve.yaml").read_text())
        self.assertEqual((secret["name"], secret["key"]), made)
        self.assertNotIn("value", variables[KEY])

    def test_without_the_key_nothing_is_served(self):
        environment = {name: value for name, value in os.environ.items() if name != KEY}
        with mock.patch.dict(os.environ, environment, clear=True), exits_with(78) as error:
            run_cli(*POD_WORDS[1:])
        self.assertIn(f"set {KEY}", str(error.exception))

    def test_what_is_accepted_is_answered_before_the_pod_is_killed(self):
        first, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(first, "sleep")
        self.assertGreater(POD["terminationGracePeriodSeconds"], int(seconds) + int(POD_FLAGS["timeout"]) + 10)

    def test_the_model_lies_on_the_volume_of_the_job_that_trains_it(self):
        job = yaml.safe_load((ROOT / "clusters/fine_tune_job.yaml").read_text())["spec"]["template"]["spec"]
        output_dir = parse_flags("fine_tune_t5", job["containers"][0]["args"])["output_dir"]
        self.assertEqual(POD_FLAGS["model_name_or_path"], output_dir)
        claims = [
            {
                volume["persistentVolumeClaim"]["claimName"]
                for volume in pod["volumes"]
                if "persistentVolumeClaim" in volume
            }
            for pod in (job, POD)
        ]
        self.assertEqual(*claims)
        mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
        self.assertEqual(set(mounts), {volume["name"] for volume in POD["volumes"]})
        self.assertTrue(output_dir.startswith(f"{mounts['runs']}/"))


class SkyPilotTest(parameterized.TestCase):
    def test_its_keys_are_those_that_skypilot_documents(self):
        self.assertEmpty(set(SKY) - SKY_KEYS)
        self.assertEmpty(set(SKY["resources"]) - SKY_RESOURCES)
        self.assertEqual(SKY["num_nodes"], 1)
        self.assertEqual(set(SKY["resources"]["accelerators"].values()), {1})

    def test_its_commands_have_flags_and_files_that_there_are(self):
        line = SKY["run"].replace("\\\n", " ")
        self.assertEmpty(problems(line))
        words = shlex.split(line)
        command = words.index("fine_tune")
        self.assertEqual(words[command - 1].rpartition("/")[2], "t5suite")
        with mock.patch.dict(os.environ, SKY["envs"]):
            words = [os.path.expandvars(word) for word in words[command + 1 :]]
        words.remove("--bf16")  # the machine that parses has no GPU
        flags = parse_flags("fine_tune_t5", words)
        self.assertEqual(flags["model_name_or_path"], SKY["envs"]["MODEL"])
        header = (ROOT / flags["train_file"]).read_text(encoding="utf-8").splitlines()[0].split(",")
        self.assertEqual(header, [flags["text_column"], flags["target_column"]])

    def test_setup_and_run_are_shell(self):
        for part in ("setup", "run"):
            done = subprocess.run(["bash", "-n"], input=SKY[part], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
