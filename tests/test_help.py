"""Help, versions and completion: answered without torch, complete, as wide as asked, and every example parses."""

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest import mock

from absl.testing import absltest, parameterized

from t5suite import cli
from t5suite.base.errors import ConfigError
from t5suite.base.script_flags import flags_of
from t5suite.commands.completion import script_parser
from t5suite.launch.script_help import flag_lines, flags_by_theme, gpus, help_text, versions_text

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("fine_tune_t5", "pre_train_t5")
WITHOUT_TORCH = """
import runpy, sys
sys.argv = {argv}
try:
    runpy.run_path({script!r}, run_name="__main__")
except SystemExit as end:
    code = end.code
assert code == 0, code
loaded = [name for name in ("torch", "transformers", "datasets", "numpy") if name in sys.modules]
assert not loaded, loaded
"""

# Examples that are run as they stand; the others need rows, runs or a network.
NEEDS_NOTHING = ("t5suite tasks", "t5suite completion", "t5suite slurm render")


def answered_without_torch(script, *argv):
    """What a script prints, which must load no torch."""
    code = WITHOUT_TORCH.format(argv=[script, *argv], script=str(ROOT / script))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


class ScriptHelpTest(parameterized.TestCase):
    @parameterized.product(script=SCRIPTS, question=["--help", "-h", "--help_all", "--version"])
    def test_a_script_answers_without_torch(self, script, question):
        before = [] if question in ("--help", "--version") else ["mini.yaml"]
        out = answered_without_torch(f"{script}.py", *before, question)
        expected = "torch " if question == "--version" else "--learning_rate X"
        self.assertIn(expected, out)

    @parameterized.parameters(*SCRIPTS)
    def test_help_all_shows_every_flag_once(self, script):
        shown = re.findall(r"^  --(\w+)", help_text(script, "", shows_all=True, width=100), re.MULTILINE)
        self.assertCountEqual(shown, flags_of(script))

    @parameterized.parameters(*SCRIPTS)
    def test_help_shows_what_most_runs_need_and_says_how_many_it_leaves_out(self, script):
        text = help_text(script, "", width=100)
        shown = re.findall(r"^  --(\w+)", text, re.MULTILINE)
        self.assertBetween(len(shown), 35, 50)
        self.assertContainsSubset(("model_name_or_path", "learning_rate", "train_file", "resume"), shown)
        self.assertIn(f"{len(flags_of(script)) - len(shown)} more flags", " ".join(text.split()))

    @parameterized.product(script=SCRIPTS, width=[40, 72, 80, 100, 120])
    def test_no_line_is_wider_than_the_terminal(self, script, width):
        for line in help_text(script, "Words. " * 60, shows_all=True, width=width).splitlines():
            if " " in line.strip() and not line.startswith("  --") and not line.startswith("usage"):
                self.assertLessEqual(len(line), width, line)

    @parameterized.parameters(*SCRIPTS)
    def test_every_flag_has_a_text_and_every_default_is_told(self, script):
        for theme, flags in flags_by_theme(script).items():
            for name, entry in flags.items():
                text = flag_lines(name, entry, 120, shows_all=True)
                words = " ".join(text.split())
                self.assertGreater(len(words), len(f"--{name} ") + 8, words)
                default = entry.get("default")
                if default not in (None, "") and default is not False:
                    self.assertRegex(words, r"[Dd]efault: ", f"{theme}: {name}")


class VersionTest(parameterized.TestCase):
    def test_the_versions_are_the_installed_ones(self):
        from importlib.metadata import version

        lines = versions_text().splitlines()
        self.assertIn(f"transformers {version('transformers')}", lines)
        self.assertRegex(lines[0], r"^t5suite \d")
        self.assertStartsWith(lines[-1], "GPUs: ")
        self.assertEqual(answered_without_torch("t5suite/__main__.py", "--version").splitlines()[1:], lines[1:])

    def test_a_needed_package_that_is_not_installed_is_said_and_an_optional_one_left_out(self):
        def version(package):
            if package in ("transformers", "aim"):
                raise PackageNotFoundError(package)
            return "9.9"

        with mock.patch("importlib.metadata.version", version):
            text = versions_text()
        self.assertIn("\ntransformers is not installed\n", text)
        self.assertIn("\ndeepspeed 9.9\n", text)
        self.assertNotIn("aim", text)

    def assertStartsWith(self, text, start):
        self.assertTrue(text.startswith(start), text)

    def test_gpus_are_what_the_driver_lists(self):
        driver = Path(tempfile.mkdtemp())
        self.assertEqual(gpus(driver / "none"), "no NVIDIA driver here")
        (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\nGCC\n")
        for i, model in enumerate(["NVIDIA H100 80GB HBM3"] * 2 + ["NVIDIA A10"]):
            (driver / "gpus" / f"0000:0{i}:00.0").mkdir(parents=True)
            (driver / "gpus" / f"0000:0{i}:00.0" / "information").write_text(f"Model: \t\t {model}\nIRQ: 7\n")
        self.assertEqual(gpus(driver), "2 x NVIDIA H100 80GB HBM3, NVIDIA A10 (driver 550.54.15)")


def examples():
    """Every command line that a sub-command's help gives, with the sub-command."""
    found = []
    for command, parser in sub_parsers(cli._parser()):
        for line in (parser.epilog or "").replace("\\\n", " ").splitlines():
            line = re.split(r"\s+[#>] ?", line)[0].strip()
            found += [(command, line)] if line.startswith("t5suite ") else []
    return found


def sub_parsers(parser, name="t5suite"):
    """`(command, parser)` of every sub-command and their actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice, sub in action.choices.items():
                yield f"{name} {choice}", sub
                yield from sub_parsers(sub, f"{name} {choice}")


class CommandHelpTest(parameterized.TestCase):
    @parameterized.parameters(*(command for command, _ in sub_parsers(cli._parser())))
    def test_every_sub_command_has_an_example_of_its_own(self, command):
        self.assertTrue(any(line.startswith(command) for name, line in examples() if command.startswith(name)), command)

    @parameterized.parameters(*(line for _, line in examples()))
    def test_every_example_parses(self, line):
        arguments = cli.parse_arguments(shlex.split(line.replace("$?", "0"))[1:])
        self.assertEqual(arguments.command, shlex.split(line)[1])

    @parameterized.parameters(
        *(line for _, line in examples() if line.startswith(NEEDS_NOTHING) and "env.sh" not in line)
    )
    def test_an_example_that_needs_nothing_runs(self, line):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            cli.main(shlex.split(line)[1:])
        self.assertGreater(len(out.getvalue()), 200)

    def test_no_help_of_a_sub_command_loads_torch(self):
        code = (
            "import contextlib, io, sys; from t5suite import cli\n"
            "for command in cli.COMMANDS:\n"
            "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
            "        cli.main([command, '--help'])\n"
            "    assert 'example' in out.getvalue(), command\n"
            "    assert not {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules), command\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)

    def test_the_usage_line_is_one_to_read(self):
        for command, parser in sub_parsers(cli._parser()):
            self.assertLess(len(parser.format_usage()), 240, command)


def completions(*words, scripts=()):
    """What bash offers for the last word, once the completion of these scripts (or of `t5suite`) is there."""
    with contextlib.redirect_stdout(io.StringIO()) as script:
        for flags in [["--script", name] for name in scripts] or [[]]:
            cli.main(["completion", "bash", *flags])
    code = f"""{script.getvalue()}
COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
$(complete -p {words[0]} | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


class CompletionTest(parameterized.TestCase):
    @parameterized.parameters(
        (["t5suite", "sc"], ["score"]),
        (["t5suite", "corpus", "b"], ["build"]),
        (["t5suite", "score", "--pred"], ["--predictions"]),
        (["t5suite", "score", "--benchmark", "super_g"], ["super_glue"]),
        (["t5suite", "tasks", "--dataset_name", "wsc"], ["wsc", "wsc.fixed"]),
        (["t5suite", "summary", "--config_name", "t5-v1_1-x"], ["t5-v1_1-xl", "t5-v1_1-xxl"]),
        (["t5suite", "slurm", "submit", "pre"], ["pre_train"]),
        (["t5suite", "score", "--rows", "pyproj"], ["pyproject.toml"]),
        (["t5suite", "submit", "--output_dir", "recip"], ["recipes"]),
        (["t5suite", "score", "--benchmark", "zzz"], []),
    )
    def test_bash_offers(self, words, expected):
        self.assertEqual(completions(*words), expected)

    @parameterized.parameters(
        (["python", "fine_tune_t5.py", "--optimi"], ["--optimizer"]),
        (["python", "../x/fine_tune_t5.py", "--benchmark", "super_g"], ["super_glue"]),
        (["accelerate", "launch", "--num_processes", "2", "fine_tune_t5.py", "--loss_s"], ["--loss_spikes"]),
        (["fine_tune_t5.py", "--eval_method", "sc"], ["score"]),
        (["fine_tune_t5.py", "mini.y"], ["mini.yaml"]),
        (["python", "fine_tune_t5.py", "--bf16", "T"], ["True"]),
        (["python", "fine_tune_t5.py", "--task_file", "pyproj"], ["pyproject.toml"]),
        (["python", "pre_train_t5.py", "--objec"], ["--objective"]),
        (["python", "fine_tune_t5.py", "--objec"], []),
        (["python", "other.py", "--optimi"], []),
    )
    def test_bash_offers_the_scripts_flags(self, words, expected):
        self.assertEqual(completions(*words, scripts=("fine_tune_t5", "pre_train_t5")), expected)

    def test_rarely_used_flags_are_offered_where_all_are_asked_for(self):
        for shows_all in (False, True):
            flags = script_parser("fine_tune_t5", shows_all)._option_string_actions
            self.assertEqual("--ddp_bucket_cap_mb" in flags, shows_all)
            self.assertIn("--learning_rate", flags)
        with self.assertRaisesRegex(ConfigError, "--all has no effect without --script"):
            cli.main(["completion", "bash", "--all"])

    @parameterized.parameters("zsh", "fish")
    def test_other_shells_take_the_scripts_completion(self, shell):
        if shutil.which(shell) is None:
            self.skipTest(f"{shell} is not installed")
        file = Path(tempfile.mkdtemp()) / "_fine_tune_t5.py"
        with contextlib.redirect_stdout(io.StringIO()) as script:
            cli.main(["completion", shell, "--script", "fine_tune_t5"])
        file.write_text(script.getvalue())
        self.assertIn("loss_spikes", script.getvalue())
        done = subprocess.run([shell, "-n", file], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @parameterized.parameters("zsh", "fish")
    def test_other_shells_offer_the_same(self, shell):
        if shutil.which(shell) is None:
            self.skipTest(f"{shell} is not installed")
        folder = Path(tempfile.mkdtemp())
        with contextlib.redirect_stdout(io.StringIO()) as script:
            cli.main(["completion", shell])
        (folder / "_t5suite").write_text(script.getvalue())
        (folder / "try").write_text(OTHER_SHELLS[shell])
        environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "TERM": "dumb"}
        done = subprocess.run([shell, "try"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
        self.assertIn("super_glue", done.stdout, done.stderr)
        self.assertNotIn("mini", done.stdout)


# zsh completes only where something is typed: a terminal of its own, and the line as it stands after the key.
OTHER_SHELLS = {
    "fish": "source _t5suite\ncomplete -C 't5suite score --benchmark super_g'\n",
    "zsh": """
zmodload zsh/zpty
zpty shell zsh -f
zpty -w shell "PS1=; fpath=($PWD \\$fpath); autoload -U compinit; compinit -u -d dump; t5suite() echo got \\$*; echo ready"
zpty -r shell line '*ready*ready*'
zpty -w -n shell $'t5suite score --benchmark super_g\\t\\n'
zpty -r shell line '*got*super*'
print -r -- "$line"
""",
}


if __name__ == "__main__":
    absltest.main()
