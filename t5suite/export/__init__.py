"""Trained models for other programs: plain Hugging Face folders, ONNX files, 8-bit integers.

`sources` finds and loads what is to be exported, `plain` writes a folder for transformers, `onnx_files` writes the
graphs that `graphs` cuts out of a model, `onnx_runtime` answers with them, `parity` compares both, `quantization`
makes the files smaller, `scores` says what that costs.
"""
