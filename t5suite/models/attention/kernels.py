"""Triton kernels of attention with a bias that all rows of a batch share: forward, and the gradients of all inputs.

    forward_kernel[(rows * heads * tiles of queries,)](query, key, value, bias, mask, seed, found, log_sums, ...)

Scores are products of queries and keys plus the bias; the softmax over keys is computed tile by tile with a running
maximum (arXiv:2205.14135, algorithm 1), the backward pass computes the weights anew from the log of their sums
(arXiv:2307.08691, algorithm 2). Products take operands as they come (bfloat16) and add up in float32; the softmax is in
base 2.

The bias's gradient has a kernel of its own: a program owns a tile of it and adds up the batch in a loop, so that no two
programs write to one place, the order of the sum is fixed, and nothing of the size of all scores is ever stored. That
computes the scores a third time; 2 of 5 products more in exchange for B tensors as large as the bias.

Dropout draws from a counter: an element's number is a function of the seed, its row and head, and its place (Philox,
`tl.rand`), the same in every kernel and whatever the tiles are.

Grids have one axis, with the tiles of a head next to each other: the others end at 65,535, which an evaluation's rows
and heads may pass. A query that sees no key gets zeros, and gives no gradient. On a CPU the kernels run in Triton's
interpreter (TRITON_INTERPRET=1 before triton is imported).

Names: t a query, s a key, b a row, h a head, W the width of a head. Strides are counted in elements; the last one is 1.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# What a mask says: nothing, one number a key, or one a pair of query and key.
NO_MASK, OF_KEYS, OF_PAIRS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _rows(pointer, place, stride, count, w, WIDTH: tl.constexpr):
    """A tile of vectors [places, W]; zeros beyond their number and width."""
    inside = (place[:, None] < count) & (w[None, :] < WIDTH)
    return tl.load(pointer + place[:, None] * stride + w[None, :], mask=inside, other=0.0)


@triton.jit
def _put_rows(pointer, values, place, stride, count, w, WIDTH: tl.constexpr):
    inside = (place[:, None] < count) & (w[None, :] < WIDTH)
    tl.store(pointer + place[:, None] * stride + w[None, :], values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _bias_of(bias, t, s, bias_t, T, S, HAS_BIAS: tl.constexpr):
    """The bias of a tile, whichever way round, in base 2."""
    if HAS_BIAS:
        return tl.load(bias + t * bias_t + s, mask=(t < T) & (s < S), other=0.0).to(tl.float32) * LOG2E
    else:
        return 0.0


@triton.jit
def _scores(
    products, bias, t, s, mask, mask_t, mask_s, scale, T, S, MASK: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """Scores in base 2 of a tile, whichever way round; -inf for pairs that do not see each other or are not there."""
    inside = (t < T) & (s < S)
    scores = products * scale + bias
    seen = inside
    if MASK == OF_KEYS:
        seen = seen & (tl.load(mask + s * mask_s, mask=s < S, other=0) != 0)
    if MASK == OF_PAIRS:
        seen = seen & (tl.load(mask + t * mask_t + s * mask_s, mask=inside, other=0) != 0)
    if CAUSAL:
        seen = seen & (s <= t)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _scaled_if_kept(values, seed, bh, t, s, S, dropout):
    """Values of a tile under dropout: 0 where an element is dropped, the others scaled up."""
    numbers = tl.rand(tl.load(seed) + bh, t * S + s)
    return tl.where(numbers >= dropout, values * (1.0 / (1.0 - dropout)), 0.0)


@triton.jit
def forward_kernel(
    query, key, value, bias, mask, seed, found, log_sums,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, bias_t, mask_b, mask_t, mask_s, f_b, f_h, f_t,
    scale, dropout, H, T, S,
    HAS_BIAS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr, WIDTH: tl.constexpr,
    TILE_T: tl.constexpr, TILE_S: tl.constexpr, TILE_W: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What queries find, and the log of the sum of their weights (base 2; 0 where nothing is seen)."""
    tiles = tl.cdiv(T, TILE_T)
    tile, bh = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    t, w = tile * TILE_T + tl.arange(0, TILE_T), tl.arange(0, TILE_W)
    q_TW = _rows(query + b * q_b + h * q_h, t, q_t, T, w, WIDTH)
    key, value = key + b * k_b + h * k_h, value + b * v_b + h * v_h
    bias, mask = bias + b * bias_b + h * bias_h, mask + b * mask_b
    highest = tl.full((TILE_T,), float("-inf"), tl.float32)
    sums = tl.zeros((TILE_T,), tl.float32)
    found_TW = tl.zeros((TILE_T, TILE_W), tl.float32)
    end = S
    if CAUSAL:
        end = tl.minimum(S, (tile + 1) * TILE_T)
    for start in range(0, end, TILE_S):
        s = start + tl.arange(0, TILE_S)
        k_SW, v_SW = _rows(key, s, k_s, S, w, WIDTH), _rows(value, s, v_s, S, w, WIDTH)
        products = tl.dot(q_TW, tl.trans(k_SW), input_precision=PRECISION)
        bias_tile = _bias_of(bias, t[:, None], s[None, :], bias_t, T, S, HAS_BIAS)
        scores = _scores(products, bias_tile, t[:, None], s[None, :], mask, mask_t, mask_s, scale, T, S, MASK, CAUSAL)
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        before = tl.exp2(highest - base)
        sums = sums * before + tl.sum(weights, 1)
        if DROPS:
            weights = _scaled_if_kept(weights, seed, bh, t[:, None], s[None, :], S, dropout)
        found_TW = found_TW * before[:, None]
        found_TW += tl.dot(weights.to(v_SW.dtype), v_SW, input_precision=PRECISION)
        highest = higher
    seen = sums > 0
    found_TW = found_TW / tl.where(seen, sums, 1.0)[:, None]
    _put_rows(found + b * f_b + h * f_h, found_TW, t, f_t, T, w, WIDTH)
    log_sum = tl.where(seen, highest + tl.log2(tl.where(seen, sums, 1.0)), 0.0)
    tl.store(log_sums + bh.to(tl.int64) * T + t, log_sum, mask=t < T)


@triton.jit
def delta_kernel(
    found, gradient, deltas, f_b, f_h, f_t, g_b, g_h, g_t, H, T,
    WIDTH: tl.constexpr, TILE_T: tl.constexpr, TILE_W: tl.constexpr,
):  # fmt: skip
    """What each query's finding and its gradient have in common: the sum of their products."""
    tiles = tl.cdiv(T, TILE_T)
    tile, bh = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    t, w = tile * TILE_T + tl.arange(0, TILE_T), tl.arange(0, TILE_W)
    found_TW = _rows(found + b * f_b + h * f_h, t, f_t, T, w, WIDTH).to(tl.float32)
    g_TW = _rows(gradient + b * g_b + h * g_h, t, g_t, T, w, WIDTH).to(tl.float32)
    tl.store(deltas + bh.to(tl.int64) * T + t, tl.sum(found_TW * g_TW, 1), mask=t < T)


@triton.jit
def key_kernel(
    query, key, value, bias, mask, seed, gradient, log_sums, deltas, key_gradient, value_gradient,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, bias_t, mask_b, mask_t, mask_s, g_b, g_h, g_t,
    dk_b, dk_h, dk_s, dv_b, dv_h, dv_s,
    scale, scaling, dropout, H, T, S,
    HAS_BIAS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr, WIDTH: tl.constexpr,
    TILE_T: tl.constexpr, TILE_S: tl.constexpr, TILE_W: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values, over all queries. Scores stand the other way round here, [s, t], so that
    they are operands of the next product as they are."""
    tiles = tl.cdiv(S, TILE_S)
    tile, bh = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    s, w = tile * TILE_S + tl.arange(0, TILE_S), tl.arange(0, TILE_W)
    k_SW = _rows(key + b * k_b + h * k_h, s, k_s, S, w, WIDTH)
    v_SW = _rows(value + b * v_b + h * v_h, s, v_s, S, w, WIDTH)
    query, gradient = query + b * q_b + h * q_h, gradient + b * g_b + h * g_h
    bias, mask = bias + b * bias_b + h * bias_h, mask + b * mask_b
    dk_SW, dv_SW = tl.zeros((TILE_S, TILE_W), tl.float32), tl.zeros((TILE_S, TILE_W), tl.float32)
    begin = 0
    if CAUSAL:
        begin = tile * TILE_S // TILE_T * TILE_T
    for start in range(begin, T, TILE_T):
        t = start + tl.arange(0, TILE_T)
        q_TW, g_TW = _rows(query, t, q_t, T, w, WIDTH), _rows(gradient, t, g_t, T, w, WIDTH)
        log_sum = tl.load(log_sums + bh.to(tl.int64) * T + t, mask=t < T, other=0.0)
        delta = tl.load(deltas + bh.to(tl.int64) * T + t, mask=t < T, other=0.0)
        products = tl.dot(k_SW, tl.trans(q_TW), input_precision=PRECISION)
        bias_tile = _bias_of(bias, t[None, :], s[:, None], bias_t, T, S, HAS_BIAS)
        scores = _scores(products, bias_tile, t[None, :], s[:, None], mask, mask_t, mask_s, scale, T, S, MASK, CAUSAL)
        weights = tl.exp2(scores - log_sum[None, :])
        dropped, weight_gradient = weights, tl.dot(v_SW, tl.trans(g_TW), input_precision=PRECISION)
        if DROPS:
            dropped = _scaled_if_kept(weights, seed, bh, t[None, :], s[:, None], S, dropout)
            weight_gradient = _scaled_if_kept(weight_gradient, seed, bh, t[None, :], s[:, None], S, dropout)
        dv_SW += tl.dot(dropped.to(g_TW.dtype), g_TW, input_precision=PRECISION)
        score_gradient = weights * (weight_gradient - delta[None, :])
        dk_SW += tl.dot(score_gradient.to(q_TW.dtype), q_TW, input_precision=PRECISION)
    _put_rows(key_gradient + b * dk_b + h * dk_h, dk_SW * scaling, s, dk_s, S, w, WIDTH)
    _put_rows(value_gradient + b * dv_b + h * dv_h, dv_SW, s, dv_s, S, w, WIDTH)


@triton.jit
def query_kernel(
    query, key, value, bias, mask, seed, gradient, log_sums, deltas, query_gradient,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, bias_t, mask_b, mask_t, mask_s, g_b, g_h, g_t,
    dq_b, dq_h, dq_t,
    scale, scaling, dropout, H, T, S,
    HAS_BIAS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr, WIDTH: tl.constexpr,
    TILE_T: tl.constexpr, TILE_S: tl.constexpr, TILE_W: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries, over all keys."""
    tiles = tl.cdiv(T, TILE_T)
    tile, bh = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    t, w = tile * TILE_T + tl.arange(0, TILE_T), tl.arange(0, TILE_W)
    q_TW = _rows(query + b * q_b + h * q_h, t, q_t, T, w, WIDTH)
    g_TW = _rows(gradient + b * g_b + h * g_h, t, g_t, T, w, WIDTH)
    log_sum = tl.load(log_sums + bh.to(tl.int64) * T + t, mask=t < T, other=0.0)
    delta = tl.load(deltas + bh.to(tl.int64) * T + t, mask=t < T, other=0.0)
    key, value = key + b * k_b + h * k_h, value + b * v_b + h * v_h
    bias, mask = bias + b * bias_b + h * bias_h, mask + b * mask_b
    dq_TW = tl.zeros((TILE_T, TILE_W), tl.float32)
    end = S
    if CAUSAL:
        end = tl.minimum(S, (tile + 1) * TILE_T)
    for start in range(0, end, TILE_S):
        s = start + tl.arange(0, TILE_S)
        k_SW, v_SW = _rows(key, s, k_s, S, w, WIDTH), _rows(value, s, v_s, S, w, WIDTH)
        products = tl.dot(q_TW, tl.trans(k_SW), input_precision=PRECISION)
        bias_tile = _bias_of(bias, t[:, None], s[None, :], bias_t, T, S, HAS_BIAS)
        scores = _scores(products, bias_tile, t[:, None], s[None, :], mask, mask_t, mask_s, scale, T, S, MASK, CAUSAL)
        weights = tl.exp2(scores - log_sum[:, None])
        weight_gradient = tl.dot(g_TW, tl.trans(v_SW), input_precision=PRECISION)
        if DROPS:
            weight_gradient = _scaled_if_kept(weight_gradient, seed, bh, t[:, None], s[None, :], S, dropout)
        score_gradient = weights * (weight_gradient - delta[:, None])
        dq_TW += tl.dot(score_gradient.to(k_SW.dtype), k_SW, input_precision=PRECISION)
    _put_rows(query_gradient + b * dq_b + h * dq_h, dq_TW * scaling, t, dq_t, T, w, WIDTH)


@triton.jit
def bias_kernel(
    query, key, value, bias, mask, seed, gradient, log_sums, deltas, bias_gradient,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, bias_t, mask_b, mask_t, mask_s, g_b, g_h, g_t,
    scale, dropout, H, T, S, num_rows,
    HAS_BIAS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr, WIDTH: tl.constexpr,
    TILE_T: tl.constexpr, TILE_S: tl.constexpr, TILE_W: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of the bias's gradient: the gradient of its scores, added up over the rows that share the bias.

    `num_rows`: the rows that share one; programs are biases x heads x tiles of queries x tiles of keys."""
    tiles_T, tiles_S = tl.cdiv(T, TILE_T), tl.cdiv(S, TILE_S)
    tile_s, tile_t = tl.program_id(0) % tiles_S, tl.program_id(0) // tiles_S % tiles_T
    gh = tl.program_id(0) // (tiles_S * tiles_T)
    group, h = (gh // H).to(tl.int64), (gh % H).to(tl.int64)
    t, w = tile_t * TILE_T + tl.arange(0, TILE_T), tl.arange(0, TILE_W)
    s = tile_s * TILE_S + tl.arange(0, TILE_S)
    bias_TS = _bias_of(bias + group * bias_b + h * bias_h, t[:, None], s[None, :], bias_t, T, S, HAS_BIAS)
    db_TS = tl.zeros((TILE_T, TILE_S), tl.float32)
    first_pair_behind = tile_s * TILE_S > tile_t * TILE_T + TILE_T - 1
    if not (CAUSAL and first_pair_behind):
        for row in range(0, num_rows):
            b = group * num_rows + row
            bh = b * H + h
            q_TW = _rows(query + b * q_b + h * q_h, t, q_t, T, w, WIDTH)
            k_SW = _rows(key + b * k_b + h * k_h, s, k_s, S, w, WIDTH)
            v_SW = _rows(value + b * v_b + h * v_h, s, v_s, S, w, WIDTH)
            g_TW = _rows(gradient + b * g_b + h * g_h, t, g_t, T, w, WIDTH)
            log_sum = tl.load(log_sums + bh * T + t, mask=t < T, other=0.0)
            delta = tl.load(deltas + bh * T + t, mask=t < T, other=0.0)
            products = tl.dot(q_TW, tl.trans(k_SW), input_precision=PRECISION)
            scores = _scores(
                products, bias_TS, t[:, None], s[None, :], mask + b * mask_b, mask_t, mask_s, scale, T, S, MASK, CAUSAL
            )
            weights = tl.exp2(scores - log_sum[:, None])
            weight_gradient = tl.dot(g_TW, tl.trans(v_SW), input_precision=PRECISION)
            if DROPS:
                weight_gradient = _scaled_if_kept(
                    weight_gradient, seed, bh.to(tl.int32), t[:, None], s[None, :], S, dropout
                )
            db_TS += weights * (weight_gradient - delta[:, None])
    inside = (t[:, None] < T) & (s[None, :] < S)
    place = bias_gradient + (group * H + h) * T * S + t[:, None] * S + s[None, :]
    tl.store(place, db_TS, mask=inside)
