"""Imported first: `t5suite` sets how OpenMP's threads wait, which works only before torch is loaded. Without a GPU,
Triton's kernels are interpreted, which must be said before triton is imported."""

import os
import shutil

import t5suite

assert t5suite
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
