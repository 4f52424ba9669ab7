// The choice of the best blocks of a token from their scores, which a warp has in shared memory as integers, for these order alike:
// no score is negative, and -1 is no block's. Blocks that differ by multiples of 32 are a lane's.
//
// Constants: LS (tokens of a block), NTOP, MOST (a 32nd of the most blocks).

// A chooser has the scores of a row and 64 entries of two words.
constexpr int ENTRIES = 128, ROW = 32 * MOST + ENTRIES;

// Blocks below the two of a token itself compete, but for the first one.
DEVICE int limit_of(int t) { return t / LS - 1; }

// Leaves the KEEP best of `n` <= 64 entries in their places, best first, and returns how many there are. An entry is a score and,
// below it, the complement of its block: the lower one of equals is the better one.
template <int KEEP> DEVICE int keep_best(u32 entries, int n, int lane) {
    __syncwarp();
    u64 mine[2];
    int rank[2] = {0, 0};
#pragma unroll
    for (int h = 0; h < 2; h++) mine[h] = lane + 32 * h < n ? load_long(entries + (lane + 32 * h) * 8) : 0;
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        const u64 other = load_long(entries + i * 8);
        rank[0] += other > mine[0];
        rank[1] += other > mine[1];
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (lane + 32 * h < n && rank[h] < KEEP) store_long(entries + rank[h] * 8, mine[h]);
    __syncwarp();
    return min(n, KEEP);
}

// Leaves up to KEEP of the best blocks among the entries, best first, the lower one of equals, and returns how many: all whose score is
// at least `cut` of the worst of NTOP. `best`: the best score of a lane's blocks.
template <int KEEP, class Cut> DEVICE int choose(u32 row, int best, int limit, int lane, Cut cut) {
    const u32 entries = row + (ROW - ENTRIES) * 4;
    // What NTOP lanes have at least is no more than the worst of the best.
    store_one(entries + lane * 4, __int_as_float(best));
    __syncwarp();
    int as_good = 0;
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
        float x[4];
        load_four(entries + i * 4, x[0], x[1], x[2], x[3]);
#pragma unroll
        for (int j = 0; j < 4; j++) as_good += __float_as_int(x[j]) >= best;
    }
    int least = cut(max(__reduce_max_sync(~0u, as_good >= NTOP ? best : -1), 0)), n = 0;
    __syncwarp();
    constexpr int AHEAD = 4;
    for (int first = 0; first < limit; first += 32 * AHEAD) {
        // All loads before the first store, which none may pass.
        int scores[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            scores[i] = first + 32 * i < limit ? __float_as_int(load_one(row + (first + 32 * i + lane) * 4)) : -1;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const u32 many = __ballot_sync(~0u, scores[i] >= least);
            if (scores[i] >= least)
                store_long(entries + (n + __popc(many & (1u << lane) - 1)) * 8, (u64)scores[i] << 32 | (u32) ~(first + 32 * i + lane));
            n += __popc(many);
            // There is always room for 32 more.
            if (n > ENTRIES / 2 - 32) {
                n = keep_best<KEEP>(entries, n, lane);
                least = max(least, cut(load_long(entries + (NTOP - 1) * 8) >> 32));
            }
        }
    }
    return keep_best<KEEP>(entries, n, lane);
}
// Entry `lane` of those: its block, or -1.
DEVICE int chosen(u32 row, int n, int lane) { return lane < n ? (int)~(u32)load_long(row + (ROW - ENTRIES) * 4 + lane * 8) : -1; }
