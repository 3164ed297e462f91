"""Libraries that have changed on the disk: the suite's code would be wrong, so that it is off, or is refused.

A case changes a library in a way that is consistent within the library: its own plain path works as before, or computes
something else, while code of ours that was written against it goes wrong. A text that does not occur exactly once
fails the test: the library itself has changed there, and the case must be written again.
"""

import functools
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import moved_library_worker
import numpy as np
import pytest
from absl.testing import parameterized
from test_sharded_training import environment, torchrun
from transformers import T5ForConditionalGeneration

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
T5 = "transformers.models.t5.modeling_t5"
GENERATION = "transformers.generation.utils"
TRAINER = "transformers.trainer"
LOADING = "transformers.core_model_loading"
MODELS = "transformers.modeling_utils"
PEFT = "peft.peft_model"
TUNERS = "peft.tuners.tuners_utils"
FSDP = "accelerate.utils.fsdp_utils"
ENGINE = "deepspeed.runtime.engine"
# What the suite does without its own code: the library's own way, or an error.
STOCK, REFUSE = "stock", "refuse"
# Of the cache of keys and values: transformers 5.24 has another name than 5.23.
(CACHE,) = {"cache", "past_key_values"} & set(inspect.signature(T5ForConditionalGeneration.forward).parameters)
# Relative; the same sums in another order.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """A change of a library, and what the suite must make of it.

    Attributes:
      job: of `moved_library_worker.JOBS`.
      outcome: STOCK: the library's own results; REFUSE: exit code 78.
      changes: `(module, old text, new text)`.
      definition: what the message of a refusal names.
      patch: the code of another library, which is imported first.
      goes_wrong: whether the job shows that our code is wrong after the change, if nothing is checked.
    """

    job: str
    outcome: str
    changes: tuple[tuple[str, str, str], ...] = ()
    definition: str = ""
    patch: str = ""
    goes_wrong: bool = True


RESIDUAL = (
    T5,
    "attention_output = hidden_states + self.dropout(attention_output)",
    "attention_output = hidden_states + 2 * self.dropout(attention_output)",
)
NORM = (
    T5,
    "hidden_states = self.final_layer_norm(hidden_states)",
    "hidden_states = self.final_layer_norm(hidden_states + hidden_states.roll(1, -1))",
)
# The cache has a name of its own among the arguments that `generate` passes from step to step.
CACHE_RENAMED = (
    (
        GENERATION,
        "        # update token_type_ids with last value\n",
        f"        if '{CACHE}' in model_kwargs:\n            model_kwargs['state'] = model_kwargs.pop('{CACHE}')\n",
    ),
    (GENERATION, "        # 1. Prepare base model inputs\n", f"        {CACHE} = kwargs.pop('state', {CACHE})\n"),
    (GENERATION, "ALL_CACHE_NAMES = [", 'ALL_CACHE_NAMES = ["state", '),
)
MISSING_ELSEWHERE = (
    (
        LOADING,
        "    return loading_info, disk_offload_index\n",
        "    model._absent_keys, loading_info.missing_keys = loading_info.missing_keys, set()\n"
        "    return loading_info, disk_offload_index\n",
    ),
    (
        MODELS,
        "                disk_offload_index=disk_offload_index,\n            )\n",
        "                disk_offload_index=disk_offload_index,\n            )\n"
        "            loading_info.missing_keys = model._absent_keys\n",
    ),
)
SAVED_DOUBLED = (
    (
        MODELS,
        "            state_dict = model_to_save.state_dict()\n",
        "            state_dict = {name: 2 * value for name, value in model_to_save.state_dict().items()}\n",
    ),
    (
        MODELS,
        "        model.eval()  # Set model in evaluation mode",
        "        for parameter in model.parameters():\n"
        "            parameter.data = parameter.data / 2\n"
        "        model.eval()  # Set model in evaluation mode",
    ),
)
RANDOM_NUMBER_DRAWN = (
    (
        TRAINER,
        "                self._load_rng_state(resume_from_checkpoint)\n                rng_to_sync = False\n",
        "                torch.rand(1)\n                rng_to_sync = False\n",
    ),
)
NORM_RENAMED = (
    (TRAINER, "grad_norm = self._get_grad_norm(model,", "grad_norm = self._total_grad_norm(model,"),
    (
        TRAINER,
        "    def _get_grad_norm(self,",
        "    def _total_grad_norm(self, model, grad_norm=None):\n"
        "        return Trainer._get_grad_norm(self, model, grad_norm)\n\n"
        "    def _get_grad_norm(self,",
    ),
)
PROMPTS_HALVED = (
    (
        PEFT,
        "prompts.repeat(batch_size, 1, 1)\n            return prompts",
        "prompts.repeat(batch_size, 1, 1)\n            return prompts / 2",
    ),
    (
        PEFT,
        "            prompts = prompts.to(inputs_embeds.dtype)\n"
        "            inputs_embeds = torch.cat((prompts, inputs_embeds), dim=1)\n"
        "            return self.base_model(inputs_embeds=inputs_embeds, **kwargs)\n\n    def _cpt_forward",
        "            prompts = 2 * prompts.to(inputs_embeds.dtype)\n"
        "            inputs_embeds = torch.cat((prompts, inputs_embeds), dim=1)\n"
        "            return self.base_model(inputs_embeds=inputs_embeds, **kwargs)\n\n    def _cpt_forward",
    ),
)
ENCODER_CALL = (
    "            # Convert encoder inputs in embeddings if needed\n"
    "            encoder_outputs = self.encoder(\n"
    "                input_ids=input_ids,\n"
    "                attention_mask=attention_mask,\n"
    "                inputs_embeds=inputs_embeds,\n"
)
EPOCH_CHANGED = (
    TRAINER,
    "        epoch_iterator = iter(train_dataloader)\n\n        # We chunk",
    "        epoch_iterator = train_dataloader.__iter__()\n        # We chunk",
)
PATCH = """
from transformers.models.t5 import modeling_t5

original = modeling_t5.T5Attention.forward

def patched(self, *args, **kwargs):
    output, *caches = original(self, *args, **kwargs)
    return 2 * output, *caches
"""

CASES = {
    "attention scaled": Case(
        "attention", STOCK, ((T5, "attn_output = self.o(attn_output)", "attn_output = 2 * self.o(attn_output)"),)
    ),
    "residual scaled, greedy answers": Case("greedy_answers", STOCK, (RESIDUAL,)),
    "residual scaled, candidates": Case("candidate_scores", STOCK, (RESIDUAL,)),
    "last norm of other states, greedy answers": Case("greedy_answers", STOCK, (NORM,)),
    "last norm of other states, candidates": Case("candidate_scores", STOCK, (NORM,)),
    "logits scaled otherwise": Case(
        "loss_in_chunks",
        STOCK,
        ((T5, "sequence_output * (self.model_dim**-0.5)", "sequence_output * (self.model_dim**-0.25)"),),
    ),
    "attention replaced in memory": Case(
        "attention", STOCK, patch=f"{PATCH}\nmodeling_t5.T5Attention.forward = patched\n"
    ),
    "attention wrapped in memory": Case(
        "attention",
        STOCK,
        patch=f"import functools\n{PATCH}\nmodeling_t5.T5Attention.forward = functools.wraps(original)(patched)\n",
    ),
    "cache renamed": Case("diverse_beams", REFUSE, CACHE_RENAMED, "GenerationMixin."),
    "missing tensors reported elsewhere": Case(
        "missing_tensors", REFUSE, MISSING_ELSEWHERE, "convert_and_load_state_dict_in_model"
    ),
    "weights saved in another form": Case("saved_weights", REFUSE, SAVED_DOUBLED, "PreTrainedModel."),
    "a random number drawn after they are restored": Case(
        "resumed_run", REFUSE, RANDOM_NUMBER_DRAWN, "Trainer._run_epoch"
    ),
    "gradient norm by another name": Case("guarded_update", REFUSE, NORM_RENAMED, "Trainer._run_epoch"),
    "safe merging only checks": Case(
        "merged_adapter",
        REFUSE,
        ((TUNERS, "                    if merge:\n", "                    if merge and not safe_merge:\n"),),
        "BaseTuner._unload_and_optionally_merge",
    ),
    "prompts of half the size": Case("prompted_model", REFUSE, PROMPTS_HALVED, "PeftModel.get_prompt"),
    "embeddings found otherwise": Case(
        "sharding",
        REFUSE,
        (
            (
                FSDP,
                'getattr(model, "get_input_embeddings", lambda: None)()',
                'getattr(type(model), "get_input_embeddings", lambda _: None)(model)',
            ),
            (
                FSDP,
                'getattr(model, "get_output_embeddings", lambda: None)()',
                'getattr(type(model), "get_output_embeddings", lambda _: None)(model)',
            ),
        ),
        "fsdp2_prepare_model",
    ),
    "encoder without further arguments": Case(
        "packed_rows",
        REFUSE,
        ((T5, f"{ENCODER_CALL}                **kwargs,\n", ENCODER_CALL),),
        "T5ForConditionalGeneration.forward",
    ),
    "a step of DeepSpeed": Case(
        "deepspeed",
        REFUSE,
        ((ENGINE, "        self._step_applied = not overflow\n", "        self._step_applied = overflow is False\n"),),
        "DeepSpeedEngine._take_model_step",
        goes_wrong=False,
    ),
}


def overlay_of(changes, patch: str = "") -> Path:
    """A folder with the changed libraries, all else in them links to the installed ones."""
    overlay = Path(tempfile.mkdtemp())
    for module, old, new in changes:
        file = Path(importlib.util.find_spec(module).origin)
        package = Path(importlib.util.find_spec(module.partition(".")[0]).origin).parent
        copy = overlay / file.relative_to(package.parent)
        for folder in reversed(file.relative_to(package.parent).parents):
            fill_with_links(overlay / folder, package.parent / folder)
        text = copy.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{module}: write this change again, {text.count(old)} times: {old}"
        copy.unlink()
        copy.write_text(text.replace(old, new), encoding="utf-8")
    if patch:
        (overlay / "patching_library.py").write_text(patch, encoding="utf-8")
    return overlay


def fill_with_links(copy: Path, original: Path) -> None:
    """Makes a folder, or puts it in the place of a link, and links to what the original one has; never its bytecode."""
    if copy.is_dir() and not copy.is_symlink():
        return
    copy.unlink(missing_ok=True)
    copy.mkdir()
    for path in original.iterdir():
        if path.name != "__pycache__":
            (copy / path.name).symlink_to(path)


def environment_with(overlay: Path | None) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [overlay, ROOT, ROOT / "tests", *inherited]
    path = os.pathsep.join(str(place) for place in places if place)
    return environment(PYTHONPATH=path, CUDA_VISIBLE_DEVICES="")


def run_worker(overlay: Path | None, checks: str, *jobs: str) -> dict:
    """The jobs' reports."""
    worker = [moved_library_worker.__file__, checks, *jobs]
    command = torchrun(2, *worker) if "sharding" in jobs else [sys.executable, *worker]
    done = subprocess.run(command, env=environment_with(overlay), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@functools.cache
def report_without_changes() -> dict:
    names = [job.__name__ for job in moved_library_worker.JOBS]
    return run_worker(None, "unchecked", *(name for name in names if name not in ("sharding", "deepspeed")))


def agree(report: dict) -> bool:
    """Whether our results are the expected ones: ids and words exactly, numbers up to rounding."""
    ours, expected = report["ours"], report["expected"]
    if all(isinstance(value, float) for value in np.ravel(np.array(expected, dtype=object)).tolist()):
        return np.allclose(ours, expected, rtol=TOLERANCE, atol=TOLERANCE)
    return ours == expected


def fine_tune(overlay: Path, folder: str, *flags: str) -> subprocess.CompletedProcess:
    """One update of a tiny T5 by the script."""
    script = [sys.executable, str(ROOT / "fine_tune_t5.py"), "--benchmark", "mini", "--dataset_name", "entailment"]
    tiny = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
    run = ["--config_overrides", tiny, "--from_scratch", "--max_steps", "1", "--use_cpu", "--output_dir", folder]
    command = [*script, *run, *flags]
    return subprocess.run(command, env=environment_with(overlay), capture_output=True, text=True, timeout=300)


class MovedLibraryTest(parameterized.TestCase):
    def test_ours_equals_the_libraries_where_nothing_has_changed(self):
        self.assertEqual({name: True for name in report_without_changes()}, {
            name: agree(report) for name, report in report_without_changes().items()
        })  # fmt: skip

    @parameterized.parameters(*CASES)
    def test_a_change_makes_ours_wrong_and_is_noticed(self, name):
        case = CASES[name]
        overlay = overlay_of(case.changes, case.patch)
        if case.goes_wrong:
            self.assertFalse(agree(run_worker(overlay, "unchecked", case.job)[case.job]))
        report = run_worker(overlay, "checked", case.job)[case.job]
        if case.outcome == STOCK:
            self.assertTrue(agree(report), report)
        else:
            self.assertEqual(report.get("exit"), 78, report)
            not_tested = r"not tested with the installed libraries: (transformers|peft|accelerate|deepspeed) \d+\.\d+"
            self.assertRegex(report["message"], f"^[^:]+: {not_tested}")
            self.assertIn(case.definition, report["message"])
            self.assertIn("pip install '", report["message"])

    def test_a_run_ends_with_78_and_goes_on_if_the_user_allows_it(self):
        overlay, folder = overlay_of((EPOCH_CHANGED,)), f"{tempfile.mkdtemp()}/run"
        refused = fine_tune(overlay, folder)
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.assertRegex(refused.stderr, r"transformers \d+\.\d+\.\d+ changed Trainer\._run_epoch")
        self.assertRegex(refused.stderr, r"pip install .*'transformers==\d+\.\d+\.\d+'")
        allowed = fine_tune(overlay, folder, "--allow_untested_libraries")
        self.assertEqual(allowed.returncode, 0, allowed.stderr)
        manifest = json.loads(Path(folder, "manifest.json").read_text(encoding="utf-8"))
        self.assertIn("changed Trainer._run_epoch", manifest["libraries"]["untested"]["training_loop"])
