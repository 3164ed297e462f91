"""The loops that numba compiles for `compiled_pieces`; importing this module needs numba.

    num_places = fill_trie(bytes_of_pieces, bounds_V, ids_V, nodes_N)
    num_ids, num_regions = encode_bytes(data, eights, bounds_T, rules, trie, memory, ..., ids, ends_T, regions_R)

A trie is a double array (Aoe 1989, doi:10.1109/32.31365): the child of a node by a byte stands at the node's base plus
that byte, if what stands there has the node for a parent. The memory of words is a hash table whose keys are the words
themselves, 16 bytes at most, so that nothing has to be compared but the key.

Shape suffixes: V pieces, N places for nodes, T texts, R regions, S places for words, W bytes of a word.
"""

import numba
import numpy as np

from t5suite.data.objectives.numba_spans import lowest_bit

KEEP, SPACE, DROP, UNKNOWN, MANY = 0, 1, 2, 3, 4  # what becomes of a character
UNDERLINE = (0xE2, 0x96, 0x81)  # U+2581, which begins every word
LEAD = len(UNDERLINE)
REMEMBERED = 16  # bytes of the longest word that is remembered
ROOT = 0
BASE, PARENT, PIECE = 0, 1, 2  # columns of a node; the fourth is not used, so that a node fills a quarter of a line
NODE = 4
NEAR = 1024
ZERO, ONE, EIGHT, LAST_BYTE = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(255)
ALL_ONES, ALL_HIGH = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
ALL_FIRST, ALL_DELETE = np.uint64(0x2121212121212121), np.uint64(0x7F7F7F7F7F7F7F7F)  # of bytes
BLANK, LINE_END = 32, 10
ROOM = 64  # bytes in `word` behind the longest word
MIXERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
LOW_HALF = np.uint64(0xFFFFFFFF)
HALF, UPPER = np.uint64(32), np.uint64(40)


@numba.njit(cache=True, nogil=True)
def fitting_base(labels, count, first_free, nodes_N):
    """The lowest base from `first_free` on at which a node's children stand in free places; -1 without room."""
    for base in range(first_free - labels[0], len(nodes_N) - 256):
        fits = True
        for number in range(count):
            if nodes_N[base + labels[number], PARENT] >= 0:
                fits = False
                break
        if fits:
            return base
    return -1


@numba.njit(cache=True, nogil=True)
def fill_trie(data, bounds_V, ids_V, nodes_N):
    """Fills the nodes with sorted pieces; returns how many places are used, -1 where there are too few.

    Nodes stand in the order of their depth; each knows the pieces that go through it, `first` to `last`.
    """
    nodes_N[:, PARENT], nodes_N[:, PIECE] = -1, -1
    queue = np.empty((len(data) + 1, 4), np.int32)  # place, first piece, last, depth
    queue[0, :] = 0, 0, len(ids_V), 0
    nodes_N[ROOT, PARENT] = ROOT
    labels, starts = np.empty(256, np.int64), np.empty(257, np.int64)
    taken, made, used, first_free = 0, 1, 256, 256  # in places before, bases would be negative
    while taken < made:
        node, first, last, depth = queue[taken]
        taken += 1
        if first < last and bounds_V[first + 1] - bounds_V[first] == depth:
            nodes_N[node, PIECE] = ids_V[first]
            first += 1
        count = 0
        for piece in range(first, last):
            label = data[bounds_V[piece] + depth]
            if count == 0 or labels[count - 1] != label:
                labels[count], starts[count] = label, piece
                count += 1
        if count == 0:
            continue
        starts[count] = last
        # A lone child fills a hole; several look for room near the end, where most of it is.
        base = fitting_base(labels, count, first_free if count == 1 else max(first_free, used - NEAR), nodes_N)
        if base < 0:
            return -1
        nodes_N[node, BASE] = base
        for number in range(count):
            child = base + labels[number]
            nodes_N[child, PARENT] = node
            queue[made, :] = child, starts[number], starts[number + 1], depth + 1
            made += 1
            used = max(used, child + 1)
        while nodes_N[first_free, PARENT] >= 0:
            first_free += 1
    return used


@numba.njit(cache=True, nogil=True)
def character_length(byte):
    """Bytes of the UTF-8 character that begins so."""
    return 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4


@numba.njit(cache=True, nogil=True)
def best_pieces(word, length, trie, scratch, ids, wrote):
    """Writes the ids of the best pieces of a word from the `wrote`-th place on; returns where they end.

    Of equals, the path that was found first: that whose last piece is longer.
    """
    nodes_N, scores_V, unk_id, unk_score = trie
    best_W, from_W, piece_W = scratch
    from_W[: length + 1] = -1
    best_W[0] = 0.0
    start = 0
    while start < length:
        one, single, so_far = character_length(word[start]), False, best_W[start]
        node, end = ROOT, start
        while end < length:
            child = np.int64(nodes_N[node, BASE]) + word[end]
            if nodes_N[child, PARENT] != node:
                break
            node, end = child, end + 1
            piece = nodes_N[node, PIECE]
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
    place = (low * MIXERS[0] ^ high * MIXERS[1]) >> UPPER & mask
    while words_S[place, 3] != ZERO and (words_S[place, 0] != low or words_S[place, 1] != high):
        place = (place + ONE) & mask
    return place


@numba.njit(cache=True, nogil=True)
def write_word(low, high, memory, ids, wrote):
    """Writes the ids of a word that is remembered; returns where they end: where they began, if it is not."""
    words_S, kept, _ = memory
    place = word_place(low, high, words_S)
    both, more = words_S[place, 2], words_S[place, 3]
    count = np.int64(more & LAST_BYTE)
    ids[wrote], ids[wrote + 1] = np.int32(both & LOW_HALF), np.int32(both >> HALF)
    read = np.int64(more >> EIGHT)
    for number in range(2, count):
        ids[wrote + number] = kept[read + number]
    return wrote + count


@numba.njit(cache=True, nogil=True)
def find_word(low, high, word, length, trie, memory, scratch, ids, wrote):
    """Writes the ids of a word that is not remembered, U+2581 included in its length, and remembers a short one."""
    words_S, kept, used = memory
    end = best_pieces(word, length, trie, scratch, ids, wrote)
    if length > LEAD + REMEMBERED:
        return end
    if 2 * used[0] >= len(words_S) or used[1] + end - wrote > len(kept):  # full: forget all
        words_S[:, 3] = ZERO
        used[:] = 0
    place, count = word_place(low, high, words_S), end - wrote
    words_S[place, 0], words_S[place, 1] = low, high
    second = np.uint64(ids[wrote + 1]) if count > 1 else ZERO
    words_S[place, 2] = second << HALF | np.uint64(ids[wrote])
    words_S[place, 3] = np.uint64(used[1]) << EIGHT | np.uint64(count)
    kept[used[1] : used[1] + count] = ids[wrote:end]
    used[0] += 1
    used[1] += count
    return end


@numba.njit(cache=True, nogil=True)
def encode_word(low, high, word, length, trie, memory, scratch, ids, wrote):
    """The ids of a word that stands in `word`."""
    if length <= LEAD + REMEMBERED:
        end = write_word(low, high, memory, ids, wrote)
        if end > wrote:
            return end
    return find_word(low, high, word, length, trie, memory, scratch, ids, wrote)


@numba.njit(cache=True, nogil=True, inline="always")
def not_plain(eight):
    """The highest bit of each of eight bytes that is no visible ASCII character, and perhaps of bytes above such."""
    erased = eight ^ ALL_DELETE
    return ((eight - ALL_FIRST) | eight | ((erased - ALL_ONES) & ~erased)) & ALL_HIGH


@numba.njit(cache=True, nogil=True)
def plain_words(data, eights, at, stop, safe, safe_wrote, trie, memory, scratch, word, ids, wrote):
    """Encodes words of at most 15 visible ASCII characters, each with a blank behind it; stops at anything else.

    Returns `(at, wrote, safe, safe_wrote)`: the first byte that it did not read, where the ids end, and both for the
    last place where a text may be cut.
    """
    is_safe = at == safe
    while at < stop:
        low, high = eights[at], ZERO
        special = not_plain(low)
        if special:
            size = np.int64(lowest_bit(special) >> np.uint64(3))
            low &= (ONE << np.uint64(8 * size)) - ONE
        else:
            high = eights[at + 8]
            special = not_plain(high)
            if not special:
                break
            size = np.int64(lowest_bit(special) >> np.uint64(3))
            high &= (ONE << np.uint64(8 * size)) - ONE
            size += 8
        if data[at + size] != BLANK and data[at + size] != LINE_END:
            break
        if is_safe:
            safe, safe_wrote = at, wrote
        is_safe = True  # at the next word, if that begins with ASCII
        if size:
            end = write_word(low, high, memory, ids, wrote)
            if end == wrote:
                word[LEAD : LEAD + size] = data[at : at + size]
                end = find_word(low, high, word, LEAD + size, trie, memory, scratch, ids, wrote)
            wrote = end
        at += size + 1
    if is_safe and data[at] < 0x80:
        safe, safe_wrote = at, wrote
    return at, wrote, safe, safe_wrote


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
def place_of_character(data, at, size, places):
    """Where `places` says what becomes of a character of several bytes, or -1."""
    if size == 2:
        return places[(np.int64(data[at]) & 31) << 6 | np.int64(data[at + 1]) & 63]
    if size == 3:
        code = (np.int64(data[at]) & 15) << 6 | np.int64(data[at + 1]) & 63
        return places[code << 6 | np.int64(data[at + 2]) & 63]
    return np.int32(-1)


@numba.njit(cache=True, nogil=True, inline="always")
def remember(low, high, length, byte):
    """The word's key with one more byte."""
    number = length - LEAD
    if number < 8:
        return low | np.uint64(byte) << np.uint64(8 * number), high
    if number < REMEMBERED:
        return low, high | np.uint64(byte) << np.uint64(8 * (number - 8))
    return low, high


@numba.njit(cache=True, nogil=True)
def encode_bytes(data, eights, bounds_T, rules, trie, memory, scratch, word, ids, ends_T, regions_R):
    """The ids of texts in UTF-8, each with a line's end behind it, without those of the regions that it cannot do.

    A region is as many whole words as may depend on a character of which the rules say nothing; it is cut where a
    space stands between ASCII characters, for no rule of normalisation reaches over that.

    Args:
      data, eights: the bytes, and the same as words of eight that begin at every byte.
      bounds_T: where each text begins, and one more.
      rules: `(kinds, places, characters, is_plain)`: what becomes of ASCII; for other characters the first byte, times
        256, plus the number of bytes of what they become in `characters`, or -1; whether visible ASCII stays as it is.
      ids, ends_T, regions_R: are written: ids, the number of ids at the end of each text, and for each region where it
        starts and ends in `data` and how many ids stand before it.
    """
    kinds, places, characters, is_plain = rules
    wrote, num_regions, longest = 0, 0, len(word) - ROOM
    word[:LEAD] = UNDERLINE[0], UNDERLINE[1], UNDERLINE[2]
    for text in range(len(bounds_T) - 1):
        at, stop = bounds_T[text], bounds_T[text + 1] - 1
        safe, safe_wrote = at, wrote
        length, low, high = LEAD, ZERO, ZERO
        while at < stop:
            if length == LEAD and is_plain:
                at, wrote, safe, safe_wrote = plain_words(
                    data, eights, at, stop, safe, safe_wrote, trie, memory, scratch, word, ids, wrote
                )
                if at >= stop:
                    break
            byte = data[at]
            kind, size, first, last = UNKNOWN, 1, 0, 0
            if byte < 0x80:
                kind = kinds[byte]
            else:
                size = character_length(byte)
                place = place_of_character(data, at, size, places)
                if place >= 0:
                    kind, first, last = MANY, place >> 8, (place >> 8) + (place & 255)
            if kind == UNKNOWN or length > longest:
                at, wrote = next_cut(data, at, stop, kinds), safe_wrote
                regions_R[num_regions, 0], regions_R[num_regions, 1], regions_R[num_regions, 2] = safe, at, wrote
                num_regions += 1
                length, low, high, safe = LEAD, ZERO, ZERO, at
                continue
            at += size
            if kind == KEEP:
                low, high = remember(low, high, length, byte)
                word[length] = byte
                length += 1
            for number in range(first, last):
                byte = characters[number]
                if byte != BLANK:
                    low, high = remember(low, high, length, byte)
                    word[length] = byte
                    length += 1
                elif length > LEAD:
                    wrote = encode_word(low, high, word, length, trie, memory, scratch, ids, wrote)
                    length, low, high = LEAD, ZERO, ZERO
            if kind == SPACE:
                if length > LEAD:
                    wrote = encode_word(low, high, word, length, trie, memory, scratch, ids, wrote)
                    length, low, high = LEAD, ZERO, ZERO
                if data[at] < 0x80 and (at - 1 == bounds_T[text] or data[at - 2] < 0x80):
                    safe, safe_wrote = at, wrote
        if length > LEAD:
            wrote = encode_word(low, high, word, length, trie, memory, scratch, ids, wrote)
        ends_T[text] = wrote
    return wrote, num_regions
