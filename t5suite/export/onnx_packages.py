"""The packages that ONNX files are written and run by; none of them is needed for anything else.

>>> require_onnx()
ConfigError: --format onnx: No module named 'onnxscript'; pip install 't5suite[onnx]'
"""

import importlib

from t5suite.base.errors import ConfigError

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INSTALL = "pip install 't5suite[onnx]'"


def require_onnx() -> None:
    """Tells at once which packages are missing.

    Raises:
      ConfigError: with the line that installs them.
    """
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(f"--format onnx: {error}; {INSTALL}") from None
