"""Trained models for other programs: plain Hugging Face folders, ONNX files, 8-bit integers.

`sources` finds and loads the model, `exporting` writes, `onnx_files` makes the graphs and compares them with
the model, `onnx_runtime` answers with them.

`adapting` makes an encoder-decoder of a decoder, by `gemma_configs` and `tensor_origins`, under the decoder's `terms`;
`adapt_checks` compares it with the decoder, and with what `gemma_in_numpy` computes.
"""
