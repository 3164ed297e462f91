"""Trained models for other programs: plain Hugging Face folders, ONNX files, 8-bit integers.

`sources` finds and loads what is to be exported, `exporting` has the steps and writes a folder for transformers,
`onnx_files` the graphs, `onnx_runtime` answers with them, `onnx_checks` compares and scores both.
"""
