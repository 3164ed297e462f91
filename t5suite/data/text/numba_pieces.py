"""The loops that numba compiles for `compiled_pieces`; importing this module needs numba.

    edges_E, node_ids_N = make_trie(vocabulary_bytes, bounds_V, ids_V)
    num_ids, num_regions = encode_bytes(data, bounds_T, rules, trie, memory, scratch, ids, ends_T, regions_R)

A trie is a hash table of its edges: the number of a node and a byte in the upper half of a word, the node that they
lead to in the lower half. The memory of words is a hash table too, whose keys are the words themselves, 16 bytes at
most, so that nothing has to be compared but the key.

Shape suffixes: V pieces, E places for edges, N nodes, T texts, R regions, S places for words, W bytes of a word.
"""

import numba
import numpy as np

KEEP, SPACE, DROP, UNKNOWN = 0, 1, 2, 3  # what becomes of an ASCII character
UNDERLINE = (0xE2, 0x96, 0x81)  # U+2581, which begins every word
LEAD = len(UNDERLINE)
REMEMBERED = 16  # bytes of the longest word that is remembered
ROOT = np.int64(0)
ZERO, EIGHT = np.uint64(0), np.uint64(8)
MIXERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
LOW_HALF = np.uint64(0xFFFFFFFF)
HALF, UPPER = np.uint64(32), np.uint64(40)


@numba.njit(cache=True, nogil=True)
def edge_place(node, byte, edges_E):
    """Where the edge stands, or the empty place (0) where it belongs."""
    key = np.uint64(node) << EIGHT | np.uint64(byte)
    mask = np.uint64(len(edges_E) - 1)
    place = (key * MIXERS[0]) >> UPPER & mask
    while edges_E[place] != ZERO and edges_E[place] >> HALF != key:
        place = (place + np.uint64(1)) & mask
    return place


@numba.njit(cache=True, nogil=True)
def make_trie(data, bounds_V, ids_V, edges_E):
    """Fills the edges; returns the ids of the pieces that end at each node, -1 where none does."""
    node_ids_N = np.full(len(data) + 1, -1, dtype=np.int32)
    num_nodes = 1
    for piece in range(len(ids_V)):
        node = ROOT
        for at in range(bounds_V[piece], bounds_V[piece + 1]):
            place = edge_place(node, data[at], edges_E)
            if edges_E[place] == ZERO:
                key = np.uint64(node) << EIGHT | np.uint64(data[at])
                edges_E[place] = key << HALF | np.uint64(num_nodes)
                num_nodes += 1
            node = np.int64(edges_E[place] & LOW_HALF)
        node_ids_N[node] = ids_V[piece]
    return node_ids_N[:num_nodes].copy()


@numba.njit(cache=True, nogil=True)
def character_length(byte):
    """Bytes of the UTF-8 character that begins so."""
    return 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4


@numba.njit(cache=True, nogil=True)
def best_pieces(word, length, trie, scratch, ids, wrote):
    """Writes the ids of the best pieces of a word from the `wrote`-th place on; returns where they end.

    Of equals, the path that was found first: that whose last piece is longer.
    """
    edges_E, node_ids_N, scores_V, unk_id, unk_score = trie
    best_W, from_W, piece_W = scratch
    from_W[: length + 1] = -1
    best_W[0] = 0.0
    start = 0
    while start < length:
        one, single, so_far = character_length(word[start]), False, best_W[start]
        node, end = ROOT, start
        while end < length:
            edge = edges_E[edge_place(node, word[end], edges_E)]
            if edge == ZERO:
                break
            node, end = np.int64(edge & LOW_HALF), end + 1
            piece = node_ids_N[node]
            if piece >= 0:
                score = scores_V[piece] + so_far
                if from_W[end] < 0 or score > best_W[end]:
                    best_W[end], from_W[end], piece_W[end] = score, start, piece
                single |= end - start == one
        if not single:
            end, score = start + one, unk_score + so_far
            if from_W[end] < 0 or score > best_W[end]:
                best_W[end], from_W[end], piece_W[end] = score, start, unk_id
        start += one
    return write_path(length, from_W, piece_W, unk_id, ids, wrote)


@numba.njit(cache=True, nogil=True)
def write_path(length, from_W, piece_W, unk_id, ids, wrote):
    """The pieces on the best path, unknown ones in a row as one."""
    first, end = wrote, length
    while end > 0:
        if piece_W[end] != unk_id or wrote == first or ids[wrote - 1] != unk_id:
            ids[wrote] = piece_W[end]
            wrote += 1
        end = from_W[end]
    ids[first:wrote] = ids[first:wrote][::-1].copy()
    return wrote


@numba.njit(cache=True, nogil=True)
def word_place(low, high, words_S):
    """Where the word stands in the memory, or the empty place where it belongs."""
    mask = np.uint64(len(words_S) - 1)
    mixed = low * MIXERS[0] ^ high * MIXERS[1]
    place = (mixed ^ mixed >> HALF) & mask
    while words_S[place, 3] != ZERO and (words_S[place, 0] != low or words_S[place, 1] != high):
        place = (place + np.uint64(1)) & mask
    return place


@numba.njit(cache=True, nogil=True)
def encode_word(word, length, low, high, trie, memory, scratch, ids, wrote):
    """The ids of a word, U+2581 included in its length, from memory where it was seen before."""
    words_S, kept, used = memory
    if length > LEAD + REMEMBERED:
        return best_pieces(word, length, trie, scratch, ids, wrote)
    place = word_place(low, high, words_S)
    count = np.int64(words_S[place, 3])
    if count:
        read = np.int64(words_S[place, 2])
        for number in range(count):
            ids[wrote + number] = kept[read + number]
        return wrote + count
    end = best_pieces(word, length, trie, scratch, ids, wrote)
    if 2 * used[0] >= len(words_S) or used[1] + end - wrote > len(kept):  # full: forget all
        words_S[:, 3] = ZERO
        used[:] = 0
        place = word_place(low, high, words_S)
    words_S[place, 0], words_S[place, 1] = low, high
    words_S[place, 2], words_S[place, 3] = np.uint64(used[1]), np.uint64(end - wrote)
    kept[used[1] : used[1] + end - wrote] = ids[wrote:end]
    used[0] += 1
    used[1] += end - wrote
    return end


@numba.njit(cache=True, nogil=True)
def next_cut(data, at, stop, kinds):
    """The next place from `at` on that holds an ASCII space between ASCII characters, or `stop`."""
    while at < stop:
        if data[at] < 0x80 and kinds[data[at]] == SPACE and (at + 1 == stop or data[at + 1] < 0x80):
            if data[at - 1] < 0x80:
                return at
        at += 1
    return stop


@numba.njit(cache=True, nogil=True)
def encode_bytes(data, bounds_T, rules, trie, memory, scratch, word, ids, ends_T, regions_R):
    """The ids of texts in UTF-8, one behind the other, without those of the regions that it cannot do.

    A region is as many whole words as may depend on a character of which the rules say nothing; it is cut where a
    space stands between ASCII characters, for no rule of normalisation reaches over that.

    Args:
      rules: `(kinds, places, characters)`: what becomes of ASCII; for other characters the first byte, times 256, plus
        the number of bytes of what they become in `characters`, or -1.
      ids, ends_T, regions_R: are written: ids, the number of ids at the end of each text, and for each region where it
        starts and ends in `data` and how many ids stand before it.
    """
    kinds, places, characters = rules
    wrote, num_regions, longest = 0, 0, len(word) - 8
    word[:LEAD] = UNDERLINE[0], UNDERLINE[1], UNDERLINE[2]
    for text in range(len(bounds_T) - 1):
        at, stop = bounds_T[text], bounds_T[text + 1]
        safe, safe_wrote = at, wrote
        length, low, high = LEAD, ZERO, ZERO
        while at < stop:
            byte, known = data[at], True
            if byte < 0x80:
                kind = kinds[byte]
                at += 1
                if kind == KEEP:
                    low, high = remember(low, high, length, byte)
                    word[length] = byte
                    length += 1
                elif kind == SPACE:
                    if length > LEAD:
                        wrote = encode_word(word, length, low, high, trie, memory, scratch, ids, wrote)
                        length, low, high = LEAD, ZERO, ZERO
                    if at == stop or (data[at] < 0x80 and (at - 1 == bounds_T[text] or data[at - 2] < 0x80)):
                        safe, safe_wrote = at, wrote
                elif kind == UNKNOWN:
                    known = False
                    at -= 1
            else:
                one = character_length(byte)
                place = -1
                if one == 2:
                    place = places[(np.int64(byte) & 31) << 6 | np.int64(data[at + 1]) & 63]
                elif one == 3:
                    code = (
                        (np.int64(byte) & 15) << 12 | (np.int64(data[at + 1]) & 63) << 6 | np.int64(data[at + 2]) & 63
                    )
                    place = places[code]
                known = place >= 0
                if known:
                    at += one
                    for number in range(place >> 8, (place >> 8) + (place & 255)):
                        byte = characters[number]
                        if byte == 32:
                            if length > LEAD:
                                wrote = encode_word(word, length, low, high, trie, memory, scratch, ids, wrote)
                            length, low, high = LEAD, ZERO, ZERO
                        else:
                            low, high = remember(low, high, length, byte)
                            word[length] = byte
                            length += 1
            if not known or length > longest:
                start, at = safe, next_cut(data, at, stop, kinds)
                wrote = safe_wrote
                regions_R[num_regions, 0], regions_R[num_regions, 1], regions_R[num_regions, 2] = start, at, wrote
                num_regions += 1
                length, low, high = LEAD, ZERO, ZERO
                safe, safe_wrote = at, wrote
        if length > LEAD:
            wrote = encode_word(word, length, low, high, trie, memory, scratch, ids, wrote)
        ends_T[text] = wrote
    return wrote, num_regions


@numba.njit(cache=True, nogil=True, inline="always")
def remember(low, high, length, byte):
    """The word's key with one more byte."""
    number = length - LEAD
    if number < 8:
        return low | np.uint64(byte) << np.uint64(8 * number), high
    if number < REMEMBERED:
        return low, high | np.uint64(byte) << np.uint64(8 * (number - 8))
    return low, high
