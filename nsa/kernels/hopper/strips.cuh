// What the compressed branch leaves of its probabilities, for blocks to be chosen by: dense_forward.cu writes, choose.cu reads.
//
// Of a token and 128 keys there is a record: of each head the sums of its 32 blocks, 16 bits each, relative to the head's reference in
// these keys, and of each head that reference and half the probability of the last key, which the next record's first block has
// as well. A token of SPAN * c .. SPAN * (c + 1) - 1 has c + 1 records, as many as it may see keys of.
//
// Constants: HPG, D.

constexpr int HEAD_BYTES = 64, RECORD = (HPG * (HEAD_BYTES + 8) + 15) / 16 * 16, SPAN = 128 * D;
// A sum, never negative, plus 2 has an exponent of four bits; the twelve that follow it are kept, rounded. Probabilities are up to
// 2^(LIFT + SLACK), a block's sum is up to 8 times that, and 2^17 would be beyond the exponent.
constexpr int LIFT = 9, SLACK = 4;
constexpr float ADDED = 2.f;

// Two sums, to each of which ADDED was added, the first in the low half.
DEVICE u32 encode(float x, float y) {
    // The exponent's other bits are shifted out; 2^15 is half of the last bit that is kept.
    return __byte_perm(__float_as_uint(x) * 32 + (1 << 15), __float_as_uint(y) * 32 + (1 << 15), 0x7632);
}
DEVICE float2 decode(u32 x) {
    return make_float2(__uint_as_float(x << 11 & 0x7fff800 | 0x40000000), __uint_as_float(x >> 5 & 0x7fff800 | 0x40000000));
}

// Records of a pair's tokens before `t`, a multiple of SPAN or the end, and those of token `t` begin at the same.
DEVICE long long records_before(int t) {
    const int c = t / SPAN;
    return (long long)SPAN * (c * (c + 1) / 2) + (long long)(t % SPAN) * (c + 1);
}
DEVICE int records_of(int t) { return t / SPAN + 1; }

// Where the strips of a token of `pair` begin, if those of tokens first .. end are kept.
DEVICE long long strip_of(int pair, int t, int first, int end) {
    const long long before = records_before(first);
    return (pair * (records_before(end) - before) + records_before(t) - before) * RECORD;
}
