"""Attention with T5's position bias: how it is put together (`quick`), and which kernel computes it.

>>> set_attention(model, "flex_attention")       # sdpa, eager, flex_attention or triton, for a T5
>>> choose(Shapes(128, 512, 12, 64), device)       # the fastest on this GPU whose numbers are right (`choosing`)
"""
