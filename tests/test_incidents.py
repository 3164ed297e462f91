"""`incidents.jsonl`: strict JSON, one line each, and none that a resumed run will come to again."""

import json
import math
import tempfile

from absl.testing import absltest, parameterized

from t5suite.training.updates.incidents import Incidents, json_numbers, read_incidents


def strict(text):
    return json.loads(text, parse_constant=lambda name: 1 / 0)


class IncidentsTest(parameterized.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.incidents = Incidents(self.directory)

    def test_a_line_says_what_happened(self):
        self.incidents.add(41, "non_finite", "update skipped", ["rte.train:7", 3], loss=math.nan, grad_norm=0.5)
        line = strict(self.incidents.path.read_text())
        self.assertEqual(line.pop("time")[-6:], "+00:00")
        self.assertEqual(
            line,
            {
                "step": 41,
                "kind": "non_finite",
                "action": "update skipped",
                "loss": None,
                "grad_norm": 0.5,
                "note": "loss was nan",
                "examples": ["rte.train:7", 3],
            },
        )

    @parameterized.parameters(math.inf, -math.inf, math.nan)
    def test_what_is_no_number_is_null_with_a_note(self, value):
        self.assertEqual(json_numbers({"loss": value}), {"loss": None, "note": f"loss was {value}"})

    def test_a_resumed_run_keeps_what_happened_up_to_its_step(self):
        for step in (3, 4, 5):
            self.incidents.add(step, "spike", "none")
        with self.incidents.path.open("a") as file:
            file.write('{"step": 6, "kind": "sp')
        self.incidents.drop_after(4)
        self.assertEqual([line["step"] for line in read_incidents(self.directory)], [3, 4])
        self.incidents.add(5, "spike", "none")
        self.assertEqual([line["step"] for line in read_incidents(self.directory)], [3, 4, 5])

    def test_only_the_main_process_writes(self):
        other = Incidents(self.directory, is_main=False)
        other.add(1, "spike", "none")
        other.drop_after(0)
        self.assertEqual(read_incidents(self.directory), [])
        self.incidents.drop_after(0)
        self.assertFalse(self.incidents.path.exists())


if __name__ == "__main__":
    absltest.main()
