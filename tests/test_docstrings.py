"""Examples in docstrings hold where they need nothing but their module: no file, no model, no name that stands for one."""

import ast
import builtins
import contextlib
import doctest
import importlib
import io
import re

from absl.testing import parameterized

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
# In all others some example shows what comes of files, of this machine or of a library that is not installed.
MODULES = """
    base.hub base.lookup base.redaction base.reference_code base.terminal benchmark_entries commands.path_checks
    constants data.batches.encodings.segment_encoding data.batches.features data.batches.pre_training_collator data.batches.samplers
    data.corpora.block_layout data.corpora.block_order data.corpora.blocks data.corpora.corpus_mixture data.corpora.encoding contrib.collocations contrib.mask_units contrib.sentence_pairs
    data.corpora.tally data.streams.loader data.streams.shares data.tokenizers.settings data.tokenizers.unigram
    data.tokenizers.word_pieces data.mixtures data.objectives
    data.objectives.corruption data.objectives.denoisers data.objectives.masked data.objectives.random_numbers
    data.objectives.spans data.objectives.vocabulary data.rows.row_checks data.rows.sources
    fine_tuner_inputs fine_tuner_answers inference.decoding
    inference.jobs inference.predictor launch.command_line launch.commands launch.sweep_search models.adapter_kinds models.t5.attention
    models.t5.chunked_loss models.configs models.rehearsal models.t5.output_layer models.t5.packing models.presets
    models.vocabulary optim.adamw_rms optim.schedules optim.settings reports.card_facts reports.card_tables
    reports.cards reports.formatting reports.intervals reports.markdown reports.learning_curves reports.next_commands reports.page_parts
    reports.published reports.seeds reports.units runs.directory runs.settings
    tasks.cells tasks.cut_marks tasks.entry_metrics tasks.instructions tasks.languages tasks.postprocessors tasks.pronouns tasks.registry
    tasks.targets tasks.templates tasks.tokenization contrib.trackers
    contrib.tracker_callbacks tracking.trackers training.samples training.step_lines training.uploads training.checkpoints.manifests training.checkpoints.starts
    training.checkpoints.saving training.evaluation training.evaluation_report training.flags.adapters training.flags.data training.flags.model
    training.flags.parser training.flags.plug_ins training.monitoring.flops
    training.monitoring.terminal training.pre_training training.pre_training_evaluation training.pre_training_text training.pre_training_trainer
    training.processes.launchers
    training.processes.weight_check training.sharding.deepspeed training.updates.micro_batches
""".split()
MODULES_OF_EXAMPLES = [*(f"t5suite.{name}" for name in MODULES), "docs.builders.model_table"]


def names_of(tree, context) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


class DocstringsTest(parameterized.TestCase):
    @parameterized.parameters(*MODULES_OF_EXAMPLES)
    def test_examples_hold(self, name):
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        for test in doctest.DocTestFinder().find(importlib.import_module(name)):
            try:
                tree = ast.parse("\n".join(example.source for example in test.examples))
            except SyntaxError:  # `{"a": 1, ...}`: a part is left out
                continue
            made = names_of(tree, ast.Store) | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
            if names_of(tree, ast.Load) - made - test.globs.keys() - set(dir(builtins)):
                continue  # it shows a call with what it does not make
            for example in test.examples:
                example.exc_msg = example.want if re.match(r"\w+(Error|Iteration): ", example.want) else example.exc_msg
            with contextlib.redirect_stdout(io.StringIO()):
                runner.run(test)
        self.assertEqual(runner.failures, 0)
        self.assertGreater(runner.tries, 0)
