"""Trained models for other programs: plain Hugging Face folders, ONNX files, 8-bit integers.

`sources` finds and loads the model, `exporting` writes, `onnx_files` makes the graphs and compares them with
the model, `onnx_runtime` answers with them.
"""
