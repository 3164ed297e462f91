"""Weights in 8 bits: ONNX Runtime's dynamic quantization of exported files.

    >>> quantize("exported", ["encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"])
    {'bytes_before': 2394249, 'bytes_after': 741377}

Weights of matrix products and embeddings become int8 with a scale for each output column (`per_channel`); activations
are rounded to 8 bits as they come, with a scale of their own for each call, so that no calibration data are needed.
The position bias, norms and softmax stay in float32.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.export.onnx_files import LARGEST_FILE
from t5suite.export.onnx_packages import INSTALL

NEW = ".quantized"


def quantize(folder, files: list[str]) -> dict[str, int]:
    """Replaces exported files by quantized ones; returns the bytes of all of them before and after.

    Raises:
      ConfigError: ONNX Runtime is not installed.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ConfigError(f"--quantize int8: {error}; {INSTALL}") from None
    folder, new = Path(folder), Path(folder) / NEW
    before = _bytes_of(folder, files)
    new.mkdir()
    for name in files:
        with quiet():
            quantize_dynamic(
                folder / name,
                new / name,
                weight_type=QuantType.QInt8,
                per_channel=True,
                use_external_data_format=_bytes_of(folder, [name]) > LARGEST_FILE,
            )
        (folder / f"{name}.data").unlink(missing_ok=True)
        for file in new.iterdir():
            file.replace(folder / file.name)
    new.rmdir()
    return {"bytes_before": before, "bytes_after": _bytes_of(folder, files)}


def _bytes_of(folder: Path, files: list[str]) -> int:
    """The bytes of files, with those of the weights that lie beside them."""
    parts = [folder / part for name in files for part in (name, f"{name}.data")]
    return sum(part.stat().st_size for part in parts if part.is_file())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """ONNX Runtime advises, on the root logger, to prepare graphs in ways that these do not need."""
    root = logging.getLogger()
    root.addFilter(_is_no_advice)
    try:
        yield
    finally:
        root.removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "quant_pre_process" not in record.getMessage() and "pre-processing" not in record.getMessage()
