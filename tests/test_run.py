"""The sequence of a run: which libraries' paths its ranks use, and which kernels of torch."""

import tempfile
from unittest import mock

import torch
from absl.testing import parameterized

from t5suite.training import process_setup, run_directory
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments


class LibrariesTest(parameterized.TestCase):
    def test_ranks_use_the_fast_paths_that_all_of_them_have_proved(self):
        """Two nodes may have other versions; a path that is off on one is off on both."""
        ranks = mock.Mock(gather=lambda off: [off, frozenset({"candidate_trees"})])
        arguments = mock.Mock(reference_code="quick_dropout", allow_untested_libraries=False)
        with mock.patch.object(process_setup.Ranks, "of_process", lambda: ranks):
            self.assertEqual(process_setup.libraries_of(arguments).off, {"quick_dropout", "candidate_trees"})

    @parameterized.parameters(([], []), ([], ["loss_chunks"]), (["loss_chunks"], []))
    def test_a_resumed_run_says_when_it_uses_the_libraries_in_another_way(self, before, now):
        manifest = {"libraries": {"off": before, "untested": {}}}
        resumed = mock.Mock(manifest=manifest, update=lambda **entries: manifest.update(entries))
        with (
            self.assertLogs(run_directory.logger, "WARNING")
            if before != now
            else self.assertNoLogs(run_directory.logger, "WARNING")
        ):
            run_directory.note_libraries(resumed, run_directory.Libraries(frozenset(now)))
        self.assertEqual(manifest["libraries"], {"off": now, "untested": {}})


class GpusTest(parameterized.TestCase):
    @parameterized.parameters((0, None, 0, 0), (1, None, 1, 0), (4, None, 1, 1), (4, "auto", 1, 0))
    def test_a_process_uses_one_gpu_and_says_so_where_it_sees_several(self, count, device_map, used, num_lines):
        arguments = SuiteTrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True)
        arguments._n_gpu = count  # what transformers has counted
        lines = []
        with (
            mock.patch.object(process_setup, "start_logging"),
            mock.patch.object(process_setup.logger, "warning", lambda *words: lines.append(words)),
        ):
            process_setup.prepare_process(arguments, device_map)
        self.assertEqual(arguments.n_gpu, used)
        self.assertEqual(arguments.train_batch_size, arguments.per_device_train_batch_size)
        self.assertLen(lines, num_lines)
        for line in lines:
            self.assertEqual(line[1], count)


class CudnnTest(parameterized.TestCase):
    @parameterized.parameters(("cuda", False), ("cpu", True))
    def test_cudnn_s_attention_is_left_out_on_gpus(self, device, enabled):
        before = torch.backends.cuda.cudnn_sdp_enabled()
        try:
            torch.backends.cuda.enable_cudnn_sdp(True)
            process_setup.leave_out_cudnn_attention(torch.device(device))
            self.assertEqual(torch.backends.cuda.cudnn_sdp_enabled(), enabled)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(before)
