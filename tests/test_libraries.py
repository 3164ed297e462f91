"""What the suite leans on in libraries: every change of it is noticed, and decides what a run uses."""

import ast
import contextlib
import copy
import dataclasses
import functools
import hashlib
import importlib
import inspect
import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import datasets
import huggingface_hub
import pytest
import torch
import transformers
from absl.testing import absltest, parameterized
from transformers.models.t5 import modeling_t5

from t5suite.base import fingerprints, libraries, library_proofs
from t5suite.base.libraries import choose_libraries, require_proved, states, unproved
from t5suite.base.library_entries import ENTRIES, REFUSE, STOCK
from t5suite.base.library_proofs import proved_table, read_installed, source_reason
from t5suite.base.lookup import load_object
from t5suite.models import rehearsal
from t5suite.models.adapters import merge_adapter
from t5suite.testing import exits_with, tiny_tuner

BY_SOURCE = [name for name, entry in ENTRIES.items() if entry.sources]


def installed_entries() -> list[str]:
    """Entries by source whose libraries are all installed."""
    return [name for name in BY_SOURCE if all(read_installed(module) is not None for module in ENTRIES[name].sources)]


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(read_installed(module))


def module_with(name: str, node: ast.stmt) -> bytes:
    """A module that defines a name alone, a method in a class of its own; without comments, formatted anew."""
    *classes, _ = name.split(".")
    for class_name in reversed(classes):
        node = ast.ClassDef(name=class_name, bases=[], keywords=[], body=[node], decorator_list=[], type_params=[])
    return ast.unparse(ast.fix_missing_locations(ast.Module(body=[node], type_ignores=[]))).encode()


def interpreters() -> dict[str, str]:
    """`{version: program}` of the Pythons on the PATH, and of pyenv's."""
    programs = {}
    for version in ("3.11", "3.12", "3.13"):
        candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        for program in filter(None, candidates):
            if subprocess.run([program, "-c", ""], capture_output=True).returncode == 0:
                programs[version] = str(program)
    return programs


def functions_of(node: ast.stmt) -> list[ast.FunctionDef]:
    return [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef)]


def with_argument_renamed(node: ast.stmt) -> bool:
    for function in functions_of(node):
        arguments = [*function.args.args[1:], *function.args.kwonlyargs]
        if arguments:
            arguments[0].arg += "_renamed"
            return True
    return False


def with_constant_changed(node: ast.stmt) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, bool | int | float):
            part.value = 7 if part.value != 7 else 8
            return True
    return False


def with_line_removed(node: ast.stmt) -> bool:
    for function in functions_of(node):
        if len(function.body) > 1:
            del function.body[-1]
            return True
    return False


def with_docstrings_changed(node: ast.stmt) -> bool:
    for part in [node, *ast.walk(node)]:
        if isinstance(part, fingerprints.DEFINITIONS) and ast.get_docstring(part) is not None:
            part.body[0].value.value = "Another text."
    return True


class SourceTest(parameterized.TestCase):
    """Decisions on changed source text, without an import."""

    def reason_after(self, entry_name: str, module: str, name: str, change) -> str | None:
        """What `source_reason` says of a definition of an entry after a change; 'unchanged' if it has no such place."""
        node = copy.deepcopy(fingerprints._defined_in(tree_of(module), name))
        if not change(node):
            return "unchanged"
        entry = dataclasses.replace(ENTRIES[entry_name], sources={module: name})
        return source_reason(entry, lambda module: module_with(name, node))

    @parameterized.parameters(*BY_SOURCE[::3])
    @pytest.mark.quick_cases(1)
    def test_changes_of_what_runs_are_noticed_and_others_are_not(self, entry_name):
        self.check_changes(entry_name, names_a_module=1)

    @parameterized.parameters(*BY_SOURCE)
    @pytest.mark.slow  # of every name of a module: one is quick
    def test_changes_of_every_definition_are_noticed(self, entry_name):
        self.check_changes(entry_name, names_a_module=None)

    def check_changes(self, entry_name, names_a_module):
        if entry_name not in installed_entries():
            self.skipTest("its library is not installed")
        noticed = 0
        for module, names in ENTRIES[entry_name].names.items():
            for name in names[:names_a_module]:
                self.assertIsNone(self.reason_after(entry_name, module, name, with_docstrings_changed), name)
                for change in (with_argument_renamed, with_constant_changed, with_line_removed):
                    reason = self.reason_after(entry_name, module, name, change)
                    self.assertIsNotNone(reason, f"{change.__name__} of {module}:{name}")
                    if reason != "unchanged":
                        self.assertIn(f"changed {name} ({module})", reason)
                        noticed += 1
        self.assertGreater(noticed, 0)

    @parameterized.parameters(*BY_SOURCE)
    def test_a_missing_definition_or_module_is_named(self, entry_name):
        if entry_name not in installed_entries():
            self.skipTest("its library is not installed")
        entry = ENTRIES[entry_name]
        module, names = next(iter(entry.names.items()))
        empty = lambda name: b"" if name == module else read_installed(name)
        self.assertIn(f"has no {names[0]} ({module})", source_reason(entry, empty))
        absent = lambda name: None if name == module else read_installed(name)
        self.assertIn(f"has no module {module}", source_reason(entry, absent))

    @parameterized.parameters(*BY_SOURCE)
    def test_each_definition_that_is_gone_is_named(self, entry_name):
        if entry_name not in installed_entries():
            self.skipTest("its library is not installed")
        for module, names in ENTRIES[entry_name].names.items():
            for name in names:
                entry = dataclasses.replace(ENTRIES[entry_name], sources={module: name})
                self.assertIn(f"has no {name} ({module})", source_reason(entry, lambda module: b""))

    @pytest.mark.slow
    def test_a_fingerprint_is_the_same_under_every_python(self):
        """Of every definition of the table, by interpreters of their own."""
        modules = {module: str(fingerprints.source_file(module)) for module in proved_table()["files"]}
        modules = {module: path for module, path in modules.items() if path != "None"}
        names = {module: [] for module in modules}
        for key in proved_table()["names"]:
            module, _, name = key.partition(":")
            if module in names:
                names[module].append(name)
        script = (
            "import importlib.util, json, sys, warnings; warnings.simplefilter('ignore')\n"
            f"spec = importlib.util.spec_from_file_location('f', {fingerprints.__file__!r})\n"
            "f = importlib.util.module_from_spec(spec); spec.loader.exec_module(f)\n"
            "modules, names = json.load(sys.stdin)\n"
            "print(json.dumps({m: f.fingerprints(open(p, encoding='utf-8').read(), names[m]) for m, p in modules.items()}))"
        )
        by_version = {}
        pairs = json.dumps([modules, names])
        for version, interpreter in interpreters().items():
            done = subprocess.run([interpreter, "-c", script], input=pairs, capture_output=True, text=True, check=True)
            by_version[version] = json.loads(done.stdout)
        if len(by_version) < 2:
            self.skipTest("needs two versions of Python on the PATH")
        first = by_version.pop(next(iter(by_version)))
        for version, prints in by_version.items():
            for module in prints:
                self.assertEqual(prints[module], first[module], f"Python {version}, {module}")


class DecisionTest(parameterized.TestCase):
    def test_everything_is_proved_with_the_versions_of_the_constraints(self):
        """Also with the objects in memory: our own replacements, and decorators of the libraries, are no patches."""
        tiny_tuner()
        for row in states():
            self.assertIn(row["state"], ("proved", "absent"), row)

    def test_fast_paths_are_the_entries_with_a_plain_way(self):
        off = choose_libraries("all").off
        choose_libraries()  # the next run of this process
        # Ids of text are compared with the tokenizer's own as the encoder is made: no entry says whether they are equal.
        compared = {"quick_tokenizer"}
        self.assertEqual({name for name, entry in ENTRIES.items() if entry.otherwise == STOCK}, off - compared)
        self.assertContainsSubset(compared, off)
        self.assertEqual({entry.otherwise for entry in ENTRIES.values()}, {STOCK, REFUSE})

    def without(self, *keys):
        """As if no tested version had these definitions."""
        table = copy.deepcopy(proved_table())
        for key in keys:
            table["names"][key] = {}
            table["files"][key.partition(":")[0]] = {}
        return mock.patch.object(library_proofs, "proved_table", lambda: table)

    def test_a_fast_path_that_is_not_proved_is_off_and_one_line_says_so(self):
        key = "transformers.models.t5.modeling_t5:T5Block"
        with self.without(key), self.assertLogs(libraries.logger, "WARNING") as logs:
            chosen = choose_libraries("quick_dropout")
        self.assertEqual(chosen.off, {"quick_attention", "quick_decoding", "candidate_trees", "quick_dropout"})
        self.assertLen(logs.output, 3)
        self.assertIn("changed T5Block (transformers.models.t5.modeling_t5); quick_attention is off", str(logs.output))

    def test_without_a_plain_way_it_is_refused_with_the_version_that_works(self):
        choose_libraries()
        with self.without("transformers.generation.utils:GenerationMixin.generate"):
            require_proved("model_loading")
            with exits_with(78) as caught:
                require_proved("diverse_beams")
        newest = max(proved_table()["versions"]["transformers"])
        self.assertIn("changed GenerationMixin.generate", str(caught.exception))
        self.assertIn(f"pip install 'transformers=={newest}'", str(caught.exception))

    def test_what_is_allowed_untested_runs_and_is_written_down(self):
        with self.without("transformers.generation.utils:GenerationMixin.generate"):
            chosen = choose_libraries(allow_untested=True)
            self.assertEqual(chosen.described["untested"], {})
            with self.assertLogs(libraries.logger, "WARNING") as logs:
                require_proved("diverse_beams")
                require_proved("diverse_beams")
        self.assertLen(logs.output, 1)
        self.assertIn("changed GenerationMixin.generate", chosen.described["untested"]["diverse_beams"])
        choose_libraries()  # the next run of this process allows nothing
        with self.without("transformers.generation.utils:GenerationMixin.generate"), exits_with(78):
            require_proved("diverse_beams")

    def test_parts_of_two_versions_together_are_not_proved(self):
        """Each part is known, but of another version."""
        table = copy.deepcopy(proved_table())
        keys = [key for key in table["names"] if key.startswith("transformers.models.t5.modeling_t5:")]
        table["files"]["transformers.models.t5.modeling_t5"] = {}
        for index, key in enumerate(keys):
            table["names"][key] = {print_: [f"{index}.0"] for print_ in table["names"][key]}
        with mock.patch.object(library_proofs, "proved_table", lambda: table):
            self.assertIn("mixes parts of several tested versions", unproved(["quick_attention"])["quick_attention"])

    def test_another_librarys_replacement_in_memory_is_noticed(self):
        def forward(self, *args, **kwargs):
            return original(self, *args, **kwargs)

        original = modeling_t5.T5Attention.forward
        self.assertEqual(unproved(["quick_attention"]), {})
        with mock.patch.object(modeling_t5.T5Attention, "forward", forward):
            reason = unproved(["quick_attention"])["quick_attention"]
        self.assertIn(f"{__file__} has replaced T5Attention", reason)
        self.assertEqual(unproved(["quick_attention"]), {})

    def test_another_librarys_replacement_that_calls_itself_a_decorator_is_noticed(self):
        @functools.wraps(modeling_t5.T5Attention.forward)
        def forward(self, *args, **kwargs):
            return None

        with mock.patch.object(modeling_t5.T5Attention, "forward", forward):
            reason = unproved(["quick_attention"])["quick_attention"]
        self.assertIn(f"{__file__} has replaced T5Attention", reason)

    def test_the_decorators_of_libraries_are_no_replacements(self):
        modules = {module for name in installed_entries() for module in ENTRIES[name].sources}
        for module in modules:
            importlib.import_module(module)
        replaced = {name: library_proofs.replaced_object(ENTRIES[name]) for name in installed_entries()}
        self.assertEqual(replaced, dict.fromkeys(replaced))

    def test_a_method_in_the_place_of_another_one_of_its_file_is_noticed(self):
        with mock.patch.object(modeling_t5.T5LayerFF, "forward", modeling_t5.T5LayerNorm.forward):
            self.assertIn("has replaced T5LayerFF", unproved(["quick_decoding"])["quick_decoding"])


def no_operation(*args, **kwargs) -> None:
    """In the place of a function that another version of a library does not have, or has for something else."""


class ModuleWithoutTable(torch.nn.BatchNorm1d):
    """A module whose table of this name has another one."""

    missing = ""

    def __init__(self, *args):
        super().__init__(*args)
        vars(self)["moved"] = vars(self).pop(self.missing)


class ProbeTest(parameterized.TestCase):
    """The library moves under each probe: it is noticed, and refused with the library's name."""

    def setUp(self):
        super().setUp()
        libraries.probed.cache_clear()
        self.addCleanup(libraries.probed.cache_clear)

    def refused(self, entry_name: str, library: str) -> None:
        libraries.probed.cache_clear()  # a process that begins now
        self.assertIn(library, unproved([entry_name])[entry_name])
        with exits_with(78) as caught:
            require_proved(entry_name)
        self.assertIn(f"pip install '{library}==", str(caught.exception))

    @parameterized.parameters(
        (entry, name) for entry in ("fused_updates", "listed_updates") for name in ENTRIES[entry].attributes.split()
    )
    def test_an_operation_on_lists_of_tensors(self, entry, name):
        self.assertEqual(unproved([entry]), {})
        with mock.patch.object(torch, name, no_operation):
            self.refused(entry, "torch")
        with mock.patch.object(torch, name):
            delattr(torch, name)
            self.refused(entry, "torch")

    def test_the_fingerprint_of_rows(self):
        same = property(lambda rows: "the same", lambda rows, text: None)
        with mock.patch.object(datasets.Dataset, "_fingerprint", same, create=True):
            self.refused("row_fingerprints", "datasets")

    @parameterized.parameters("_modules", "_forward_hooks", "_forward_pre_hooks", "_parameters", "_buffers")
    def test_a_table_of_a_module(self, name):
        without_table = type("Moved", (ModuleWithoutTable,), {"missing": name})
        with mock.patch.object(torch.nn, "BatchNorm1d", without_table):
            self.assertIn("torch", unproved(["model_loading"])["model_loading"])

    def test_the_rates_of_a_scheduler(self):
        state = {"last_epoch": 1, "last_lr": [0.5], "_step_count": 2}
        with mock.patch.object(torch.optim.lr_scheduler.LambdaLR, "state_dict", lambda scheduler: state):
            self.assertIn("torch", unproved(["training_loop"])["training_loop"])

    def test_what_a_schedule_that_watches_evaluations_has_seen(self):
        with mock.patch.object(transformers.optimization.GreedyLR, "state_dict", lambda scheduler: {"_last_lr": [1.0]}):
            self.assertIn("transformers", unproved(["training_loop"])["training_loop"])

    def test_the_mark_of_settings_that_are_copied_from_a_configuration(self):
        unmarked = mock.Mock(to_diff_dict=dict)
        with mock.patch.object(transformers.GenerationConfig, "from_model_config", lambda config: unmarked):
            self.refused("special_tokens", "transformers")

    def test_the_special_tokens_of_a_class(self):
        with mock.patch.object(transformers.T5Config, "eos_token_id", property(lambda config: 1)):
            self.refused("special_tokens", "transformers")

    def test_uploads_in_the_background(self):
        by_no_method = lambda client, *, run_as_future, **_: "a thread of its own"
        with mock.patch.object(huggingface_hub.HfApi, "upload_folder", by_no_method):
            self.refused("background_uploads", "huggingface_hub")

    def test_tensors_without_values(self):
        with mock.patch.object(rehearsal, "FakeTensorMode", lambda needed: None):
            self.refused("memory_estimate", "torch")

    def test_operators_that_a_mode_does_not_see(self):
        passed_by = lambda mode, function, types, args=(), kwargs=None: function(*args, **(kwargs or {}))
        with mock.patch.object(rehearsal.LiveBytes, "__torch_dispatch__", passed_by):
            self.refused("memory_estimate", "torch")


# Libraries whose classes ours inherit from.
WITH_CLASSES = frozenset("accelerate datasets huggingface_hub peft tokenizers torch transformers".split())
# Private names that are no library's inside: of Python's own library, and of named tuples.
NOT_OF_LIBRARIES = frozenset("_asdict _fields _replace _exit".split())


class CompletenessTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_every_private_name_of_a_library_is_in_an_entry(self):
        trees = {
            path: ast.parse(path.read_text(encoding="utf-8")) for path in Path(library_proofs.OUR_CODE).rglob("*.py")
        }
        nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
        our_names = {name for _, node in nodes for name in names_made_by(node)}
        allowed = our_names | NOT_OF_LIBRARIES
        for entry in ENTRIES.values():
            allowed |= set(entry.attributes.split())
            for names in entry.names.values():
                allowed |= {part for name in names for part in name.split(".")}
        for path, node in nodes:
            for name in private_names_in(node):
                self.assertIn(name, allowed, f"{path}:{node.lineno}: in no entry")

    @pytest.mark.slow
    def test_what_a_class_sets_of_its_base_s_private_attributes_is_in_an_entry(self):
        allowed = {attribute for entry in ENTRIES.values() for attribute in entry.attributes.split()}
        classes = 0
        missing_names = set()
        for path in Path(library_proofs.OUR_CODE).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
                source = source_of_library_bases(tree, node)
                classes += bool(source)
                names = [name for name in names_set_on_self(node) if f"self.{name}" in source]
                missing_names |= {(path.name, node.name, name) for name in names if name not in allowed}
        self.assertEmpty(missing_names)
        self.assertGreater(classes, 5)

    @parameterized.parameters(*(name for name in BY_SOURCE if ENTRIES[name].attributes))
    def test_an_attribute_stands_in_a_definition_of_its_entry_or_in_its_probe(self, entry_name):
        """So that it cannot get another name unnoticed."""
        entry = ENTRIES[entry_name]
        texts = [
            ast.unparse(fingerprints._defined_in(tree_of(module), name))
            for module, names in entry.names.items()
            for name in names
        ]
        if entry.probe is not None:
            texts.append(inspect.getsource(load_object(entry.probe, "the probe")))
        for attribute in entry.attributes.split():
            self.assertTrue(any(attribute in text for text in texts), attribute)

    def test_no_entry_lists_an_attribute_that_nothing_uses(self):
        text = "".join(path.read_text(encoding="utf-8") for path in Path(library_proofs.OUR_CODE).rglob("*.py"))
        for name, entry in ENTRIES.items():
            for attribute in entry.attributes.split():
                self.assertGreater(text.count(attribute), 1, f"{name}: {attribute}")


class LookupTest(parameterized.TestCase):
    def test_a_module_that_lacks_another_one_is_not_said_to_be_missing(self):
        folder = Path(tempfile.mkdtemp())
        (folder / "absent_scores.py").write_text("import absent")
        with mock.patch.object(sys, "path", [str(folder), *sys.path]):
            with self.assertRaisesRegex(ModuleNotFoundError, "No module named 'absent'"):
                load_object("absent_scores:scores", "--metrics")
            for spec in ("absent:scores", "absent.scores:scores"):
                with exits_with(78, f"--metrics {spec}: no module"):
                    load_object(spec, "--metrics")


def names_made_by(node: ast.AST) -> list[str]:
    """Names of our own: functions, classes, attributes of `self`, assigned names."""
    if isinstance(node, fingerprints.DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        return [node.attr] if node.value.id in ("self", "cls") else []
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return []


def names_set_on_self(class_node: ast.ClassDef) -> list[str]:
    """The private attributes of `self` that a class sets."""
    names = [name for node in ast.walk(class_node) if isinstance(node, ast.Attribute) for name in names_made_by(node)]
    return [name for name in names if name.startswith("_") and not name.startswith("__")]


def source_of_library_bases(tree: ast.Module, class_node: ast.ClassDef) -> str:
    """The source of all classes that a class inherits from the libraries that its module imports names from."""
    modules = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in WITH_CLASSES
        for alias in node.names
    }
    sources = []
    for base in class_node.bases:
        if isinstance(base, ast.Name) and base.id in modules:
            module, name = modules[base.id]
            bases = inspect.getmro(getattr(importlib.import_module(module), name))
            sources += [inspect.getsource(each) for each in bases if each.__module__.partition(".")[0] in WITH_CLASSES]
    return "".join(sources)


def private_names_in(node: ast.AST) -> list[str]:
    """Private attributes that a node reads or writes, and private names and modules that it imports from libraries."""
    if isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("t5suite"):
        names = [*node.module.split("."), *(alias.name for alias in node.names)]
    else:
        names = []
    return [name for name in names if name.startswith("_") and not name.startswith("__")]


class CommandTest(parameterized.TestCase):
    def test_no_library_is_imported_to_decide(self):
        script = (
            "import sys; from t5suite.base.libraries import unproved, ENTRIES\n"
            "unproved(name for name in ENTRIES if ENTRIES[name].probe is None)\n"
            "print({'torch', 'transformers', 'accelerate', 'peft', 'deepspeed'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.strip(), "set()")

    def printed(self, *words) -> list[str]:
        """The lines of `python -m t5suite.base.libraries` for two entries, one of them by a probe, and a third one."""
        entries = {"by source": ENTRIES[BY_SOURCE[0]], "by probe": next(e for e in ENTRIES.values() if not e.sources)}
        missing = dataclasses.replace(entries["by probe"], library="no_such_library")
        of_command = mock.patch.dict(ENTRIES, {**entries, "missing": missing}, clear=True)
        with of_command, contextlib.redirect_stdout(io.StringIO()) as output:
            libraries.main(words)
        return output.getvalue().splitlines()

    def test_every_entry_is_printed_with_its_state_and_why(self):
        expected = {"by source": "proved", "by probe": "proved", "missing": "absent"}
        rows = [json.loads(line) for line in self.printed("--json")]
        self.assertEqual({row["entry"]: row["state"] for row in rows}, expected)
        for line, row in zip(self.printed(), rows, strict=True):
            self.assertEqual(" ".join(line.split()), f"{row['state']} {row['entry']} {row['reason'] or ''}".strip())
        self.assertEqual((rows[0]["reason"], rows[2]["reason"]), (None, "no_such_library not installed"))

    def test_proving_adds_the_installed_version_to_those_in_the_table(self):
        entry = ENTRIES[BY_SOURCE[0]]
        module, names = next(iter(entry.names.items()))
        package = module.partition(".")[0]
        path = Path(tempfile.mkdtemp()) / "table.json"
        earlier = {"versions": {package: ["1.9.0", "1.10.0"]}, "files": {module: {"f" * 64: ["1.9.0"]}}, "names": {}}
        path.write_text(json.dumps(earlier))
        self.addCleanup(proved_table.cache_clear)
        proved_table.cache_clear()
        self.enter_context(mock.patch.dict(ENTRIES, {"by source": entry}, clear=True))
        self.enter_context(mock.patch.object(library_proofs, "TABLE", path))
        self.enter_context(contextlib.redirect_stdout(io.StringIO()))
        with mock.patch("importlib.metadata.version", return_value="1.10.1+cu130"):
            libraries.main(["--prove"])
        table = json.loads(path.read_text())
        self.assertEqual(table["versions"][package], ["1.9.0", "1.10.0", "1.10.1"])
        digest = hashlib.sha256(read_installed(module)).hexdigest()
        self.assertEqual(table["files"][module], {"f" * 64: ["1.9.0"], digest: ["1.10.1"]})
        self.assertContainsSubset([f"{module}:{name}" for name in names], table["names"])

    @pytest.mark.slow
    def test_proving_again_changes_nothing(self):
        table = library_proofs.with_installed(proved_table())
        sorted_table = json.loads(json.dumps(table, default=lambda versions: sorted(versions)))
        self.assertEqual(sorted_table, json.loads(Path(library_proofs.TABLE).read_text(encoding="utf-8")))


class MergedAdapterTest(absltest.TestCase):
    def test_a_merged_model_trains_on_as_a_plain_one_does(self):
        """PEFT leaves the weights of the base model frozen."""
        model = tiny_tuner(None, "mini/sentiment", adapter="lora").model
        for mode in (True, False):
            with self.subTest(is_training=mode):
                merged = merge_adapter(copy.deepcopy(model).train(mode))
                self.assertTrue(all(parameter.requires_grad for parameter in merged.parameters()))
                self.assertEqual({module.training for module in merged.modules()}, {mode})
