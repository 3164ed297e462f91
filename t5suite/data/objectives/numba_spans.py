"""The loops that numba compiles for `compiled_spans`; importing this module needs numba.

    corrupt_rows(tokens_BL, seed, indices_B, num_noise, draws, sentinels_K, eos_id, inputs, targets)  ->  True

Gaps that are cut are bits of a few machine words: a set bit says that a gap was drawn before, and the bits from the
lowest to the highest are the sorted cuts.

Shape suffixes: B rows, L tokens of a block, I inputs, T targets, K spans, E edges, D draws, W machine words.
"""

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from t5suite.data import mixing

GAMMA = np.uint64(mixing.GAMMA)
MULTIPLIERS = tuple(map(np.uint64, mixing.MULTIPLIERS))
SHIFTS = tuple(map(np.uint64, mixing.SHIFTS))
ONE, HALF = np.uint64(1), np.uint64(32)
WORD_BITS, IN_WORD = np.uint64(6), np.uint64(63)
LOW_HALF = np.uint64(0xFFFFFFFF)
PIECE = 8  # tokens that are copied at once
LONG = 32  # so many are copied of every clean run, without a branch that would be mispredicted as often as not


@intrinsic
def lowest_bit(typing_context, word):
    """The number of the lowest set bit of a word that is not 0."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@numba.njit(cache=True, nogil=True)
def mixed(value):
    """`mixing.mixed` of one number."""
    value = (value ^ (value >> SHIFTS[0])) * MULTIPLIERS[0]
    value = (value ^ (value >> SHIFTS[1])) * MULTIPLIERS[1]
    return value ^ (value >> SHIFTS[2])


@intrinsic
def copy_piece(typing_context, tokens, read, side, wrote):
    """Copies `PIECE` tokens from the `read`-th on to the `wrote`-th places on, as int64, by one instruction or two.

    LLVM makes as much of a loop over eight tokens, but not of two such loops one after the other.
    """

    def generate(context, builder, signature, args):
        kind, _, side_kind, _ = signature.args
        read_from = builder.gep(context.make_array(kind)(context, builder, args[0]).data, [args[1]])
        write_to = builder.gep(context.make_array(side_kind)(context, builder, args[2]).data, [args[3]])
        stored, wide = (ir.VectorType(kind, PIECE) for kind in (read_from.type.pointee, ir.IntType(64)))
        found = builder.load(builder.bitcast(read_from, stored.as_pointer()), align=kind.dtype.bitwidth // 8)
        if kind.dtype.bitwidth < 64:
            found = builder.sext(found, wide) if kind.dtype.signed else builder.zext(found, wide)
        builder.store(found, builder.bitcast(write_to, wide.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(tokens, types.int64, side, types.int64), generate


@numba.njit(cache=True, nogil=True)
def mark(gap, bits_W):
    """Sets the bit of a gap; 1 if it was not set."""
    place, bit = gap >> WORD_BITS, ONE << (gap & IN_WORD)
    before = bits_W[place]
    bits_W[place] = before | bit
    return np.int64((before & bit) == np.uint64(0))


@numba.njit(cache=True, nogil=True)
def fill_edges(base, first_key, num_keys, num_tokens, edges_E, bits_W):
    """One kind's edges from its keys, of which a word holds two; False where they hold too few different gaps."""
    num_gaps, num_cuts = num_tokens - 1, len(edges_E) - 2
    wanted = min(num_cuts, num_gaps - num_cuts)
    num_words = (num_gaps + 63) // 64
    bits_W[:num_words] = 0
    found, gaps = 0, np.uint64(num_gaps)
    number, last_number = np.uint64(first_key >> 1), np.uint64((first_key + num_keys) >> 1)
    while found < wanted and number < last_number:
        number += ONE
        word = mixed(base + number * GAMMA)
        found += mark((word & LOW_HALF) * gaps >> HALF, bits_W)
        if found < wanted:
            found += mark((word >> HALF) * gaps >> HALF, bits_W)
    if found < wanted:
        return False
    if num_cuts > num_gaps // 2:  # those left uncut were drawn
        for place in range(num_words):
            bits_W[place] = ~bits_W[place]
        if num_gaps % 64:
            bits_W[num_words - 1] &= (ONE << np.uint64(num_gaps % 64)) - ONE
    edges_E[0], edges_E[-1] = 0, num_tokens
    edge = 1
    for place in range(num_words):
        left = bits_W[place]
        while left:
            edges_E[edge] = place * 64 + np.int64(lowest_bit(left)) + 1
            left &= left - ONE
            edge += 1
    return True


@numba.njit(cache=True, nogil=True)
def copy_run(tokens, read, least, count, side, wrote):
    """Copies a run in whole pieces, `least` tokens in any case; the excess is written over."""
    for first in range(0, least, PIECE):
        copy_piece(tokens, read + first, side, wrote + first)
    for first in range(least, count, PIECE):
        copy_piece(tokens, read + first, side, wrote + first)


@numba.njit(cache=True, nogil=True)
def fill_sides(tokens, read, clean_E, noise_E, sentinels_K, eos_id, inputs, wrote, targets, wrote_targets):
    """One row of each side from its edges, from the `read`-th token on and to the `wrote`-th places on."""
    for span in range(len(sentinels_K)):
        clean, noise = clean_E[span + 1] - clean_E[span], noise_E[span + 1] - noise_E[span]
        copy_run(tokens, read, LONG, clean, inputs, wrote)
        read, wrote = read + clean, wrote + clean
        inputs[wrote] = targets[wrote_targets] = sentinels_K[span]
        wrote, wrote_targets = wrote + 1, wrote_targets + 1
        copy_run(tokens, read, PIECE, noise, targets, wrote_targets)
        read, wrote_targets = read + noise, wrote_targets + noise
    if eos_id >= 0:
        inputs[wrote] = targets[wrote_targets] = eos_id


@numba.njit(cache=True, nogil=True)
def corrupt_rows(tokens_BL, seed, indices_B, num_noise, draws, sentinels_K, eos_id, inputs, targets):
    """Fills both sides, flat arrays with `LONG` places more behind the last row; False where a row lacks draws."""
    batch, length = tokens_BL.shape
    inputs_length, targets_length = (len(inputs) - LONG) // batch, (len(targets) - LONG) // batch
    bits_W = np.empty(length // 64 + 1, dtype=np.uint64)
    clean_E = np.empty(len(sentinels_K) + 1, dtype=np.int64)
    noise_E = np.empty(len(sentinels_K) + 1, dtype=np.int64)
    tokens, read, last_rows = tokens_BL.reshape(-1), 0, max(batch - 1 - LONG // length, 0)
    for row in range(batch):
        base = mixed(mixed(seed + GAMMA) + indices_B[row] * GAMMA)
        if not fill_edges(base, 0, draws[0], length - num_noise, clean_E, bits_W):
            return False
        if not fill_edges(base, draws[0], draws[1], num_noise, noise_E, bits_W):
            return False
        if row == last_rows:  # behind their tokens there are too few that could be read too much
            rest = tokens[read:]
            tokens, read = np.zeros(len(rest) + LONG, dtype=tokens_BL.dtype), 0
            tokens[: len(rest)] = rest
        sides = inputs, row * inputs_length, targets, row * targets_length
        fill_sides(tokens, read, clean_E, noise_E, sentinels_K, eos_id, *sides)
        read += length
    return True
