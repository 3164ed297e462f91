"""What trackers were told, and what stands in their files."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


class Received:
    """What a tracker was told: `{(name, step): value}`, and each table's `(name, step)` and text or rows."""

    def __init__(self):
        self.numbers, self.tables, self.twice = {}, {}, []

    def add(self, name: str, step: int, value) -> None:
        place = self.tables if not isinstance(value, (int, float)) else self.numbers
        if (name, step) in place:
            self.twice.append((name, step))
        place[name, step] = value

    def add_row(self, row: dict, step: int) -> None:
        for name, value in row.items():
            self.add(name, step, value)


def tensorboard_files(directory: Path) -> Received:
    """What TensorBoard's own reader finds in its files."""
    received = Received()
    sizes = {"scalars": 0, "tensors": 0}
    events = EventAccumulator(str(directory / "tensorboard"), size_guidance=sizes).Reload()
    for tag in events.Tags()["scalars"]:
        for point in events.Scalars(tag):
            received.add(tag, point.step, point.value)
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            received.add(tag, event.step, event.tensor_proto.string_val[0].decode())
    return received


def rows_of_table(content) -> list[list[str]]:
    """A table as rows of texts, its header first, whether it came as rows or as Markdown."""
    if isinstance(content, str):
        header = [cell.strip() for cell in content.splitlines()[0].strip("|").split("|")]
        bodies = [line for line in content.splitlines()[2:]]
        return [header, *([cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in bodies)]
    return [[str(cell).replace("\n", "<br>").replace("|", "¦") for cell in row] for row in content]
