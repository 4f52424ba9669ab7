// Importance scores of selection blocks from the compressed branch's log-sum-exp, and the best blocks of each token.
//
// A work tile is TOKENS tokens of a group; as many blocks of threads as processors walk over the work tiles, longest first.
// One warp brings queries and keys by tensor maps. Each of WGS warpgroups holds 64 rows of queries in registers: it sums the
// probabilities of a block's keys and of a group's heads, and leaves sums by token in a strip of global memory that stays in the
// L2 cache. Warpgroups issue their products in turns, so that one makes probabilities while another's product runs. The remaining
// warps choose the best blocks of the work tile before, from the other strip.
//
// Keys come in an order in which neighbouring blocks are a lane's: column 16 * p + 8 * h + 2 * t + i of BN is key
// BN / 4 * t + 4 * p + 2 * h + i.
//
// Constants: DK (multiple of 64), HPG (heads per group), L, D (compression, L = 2 * D), LS (blocks, 4 * D), NTOP, WGS, EXTRA
// (whether a warpgroup of its own helps to choose), BN (128: keys of a tile), STAGES, MOST (a 32nd of the most blocks), HALF.

// A token's heads are as many rows as a power of two; those of 32 are two warps', which leave PARTS sums.
constexpr int PAD = HPG <= 4 ? 4 : HPG <= 8 ? 8 : HPG <= 16 ? 16 : 32, PARTS = PAD > 16 ? 2 : 1;
constexpr int ROWS = 64 * WGS, TOKENS = ROWS / PAD, DKC = DK / 64, BLOCKS = BN / 4, MINE = BN / 16;
constexpr int Q_CHUNK_BYTES = ROWS * 128, K_CHUNK_BYTES = BN * 128, CHOOSERS = 3 + 4 * EXTRA;
// A chooser has the scores of a row and 64 entries of two words.
constexpr int ENTRIES = 128, ROW = 32 * MOST + ENTRIES;
constexpr int PITCH = 32 * MOST, STRIP = TOKENS * PARTS * PITCH;
constexpr int AT_Q = 0, AT_K = AT_Q + DKC * Q_CHUNK_BYTES, AT_ROWS = AT_K + STAGES * DKC * K_CHUNK_BYTES;
constexpr int AT_BARRIERS = AT_ROWS + CHOOSERS * ROW * 4;
static_assert(HPG <= 32 && LS == 4 * D && L == 2 * D && NTOP <= 32 && BN == 128, "sizes that are served");

struct Arguments {
    TensorMap q, k;
    const float *lse;   // [B, S, H]
    float *strips;      // [blocks of threads, 2, TOKENS, PARTS, PITCH]
    int *top, *counts;  // [B * G, S, NTOP]; [B * G, lists]
    int S, H, G, bg, tiles, items, blocks, span, lists;
    float scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

// Blocks below the two of a token itself compete, but for the first one.
DEVICE int limit_of(int t) { return t / LS - 1; }

// A work tile, and the next one of this block of threads: every other round runs backwards, so that none gets all the long ones.
struct Work {
    int round, pair, b, g, t0, steps;

    DEVICE Work() : round(0) {}
    DEVICE bool find(const Arguments &a) {
        const int item = round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (item >= a.items) return false;
        pair = item % a.bg;
        b = pair / a.G;
        g = pair % a.G;
        t0 = (a.tiles - 1 - item / a.bg) * TOKENS;
        steps = (max(limit_of(min(t0 + TOKENS, a.S) - 1), 0) + BLOCKS - 1) / BLOCKS;
        return true;
    }
    DEVICE void next() { round++; }
    DEVICE float *strip(const Arguments &a) const {
        return a.strips + (long long)(blockIdx.x * 2 + (round & 1)) * STRIP;
    }
};

// Barriers: queries there and done with; for each strip filled and chosen from; for each stage keys there and done with.
DEVICE u32 bar_q(u32 base) { return base + AT_BARRIERS; }
DEVICE u32 bar_strip(u32 base, int round) { return base + AT_BARRIERS + 16 + (round & 1) * 16; }
DEVICE u32 bar_k(u32 base, int step) { return base + AT_BARRIERS + 48 + step % STAGES * 16; }

DEVICE void bring(const Arguments &a, u32 base) {
    int step = 0, count = 0;
    Work x;
    for (; x.find(a); x.next()) {
        if (!x.steps) continue;
        const u32 q = bar_q(base);
        barrier_wait(q + 8, count++ & 1 ^ 1);
        barrier_expect(q, TOKENS * HPG * DK * 2);
        // A box is all tokens' heads, or one token's, whose rows do not follow those of the token before.
        for (int i = 0; i < (HPG == PAD ? 1 : TOKENS); i++)
            for (int c = 0; c < DKC; c++)
                copy_box(base + AT_Q + c * Q_CHUNK_BYTES + i * PAD * 128, &a.q, q, c * 64, x.g * HPG, x.t0 + i, x.b);
        for (int i = 0; i < x.steps; i++, step++) {
            const u32 k = bar_k(base, step);
            barrier_wait(k + 8, step / STAGES & 1 ^ 1);
            barrier_expect(k, DKC * K_CHUNK_BYTES);
            for (int c = 0; c < DKC; c++)
                copy_kept(base + AT_K + (step % STAGES * DKC + c) * K_CHUNK_BYTES, &a.k, k, x.g * DK + c * 64, 0, 4 * i, 0, x.b);
        }
    }
}

// Sums over the LANES lanes that have a token's heads. Lane g is left with blocks MINE / LANES * (g % LANES) and following. The order
// of additions is the same for all blocks: equal ones stay equal.
template <int LANES> DEVICE void sum_over_heads(float (&sum)[MINE], int g) {
#pragma unroll
    for (int bit = LANES / 2, n = MINE / 2; bit > 0; bit /= 2, n /= 2)
#pragma unroll
        for (int j = 0; j < n; j++) {
            const float mine = g & bit ? sum[j + n] : sum[j], other = g & bit ? sum[j] : sum[j + n];
            sum[j] = mine + __shfl_xor_sync(~0u, other, 4 * bit);
        }
}

DEVICE void consume(const Arguments &a, u32 base, int w) {
    // A lane has rows g and g + 8 of its warp: of one token, or of two.
    constexpr int SETS = PAD < 16 ? 2 : 1, LANES = PAD < 8 ? PAD : 8, KEPT = MINE / LANES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    const int row = 64 * w + 16 * warp, slot[2] = {(row + g) / PAD, (row + g + 8) / PAD};
    const int head[2] = {(row + g) % PAD, (row + g + 8) % PAD};
    // Where the lane finds its rows for a load of four 8 x 8 matrices, and which of a row's 16 bytes it takes first.
    const u32 q_rows = base + AT_Q + (row + lane % 16) * 128;
    const int unit = lane / 16, turn = lane % 8;
    const int which = MINE / KEPT * t + g % LANES;  // of a tile's blocks, KEPT at a time
    int before = 0, count = 0;
    if (w == 0) arrive_some(1, 256);
    Work x;
    for (; x.find(a); x.next()) {
        const u32 strip_bar = bar_strip(base, x.round);
        barrier_wait(strip_bar + 8, x.round / 2 & 1 ^ 1);
        if (x.steps) {
            float lse[2], over[SETS];
            float *to[SETS];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int token = x.t0 + slot[h];
                lse[h] = __int_as_float(0x7f800000);
                if (token < a.S && head[h] < HPG) lse[h] = a.lse[((long long)x.b * a.S + token) * a.H + x.g * HPG + head[h]];
            }
#pragma unroll
            for (int h = 0; h < SETS; h++) {
                over[h] = 0.f;
                to[h] = x.strip(a) + (slot[h] * PARTS + (PARTS > 1 ? warp % PARTS : 0)) * PITCH + KEPT * which;
            }
            u32 q[DK / 16][4];
            barrier_wait(bar_q(base), count++ & 1);
#pragma unroll
            for (int i = 0; i < DK / 16; i++) {
                load_matrices(q[i], q_rows + i / 4 * Q_CHUNK_BYTES + ((2 * (i % 4) + unit ^ turn) << 4));
                if (HPG < PAD)  // rows that nothing was brought for
#pragma unroll
                    for (int r = 0; r < 4; r++) q[i][r] = head[r % 2] < HPG ? q[i][r] : 0;
            }
            for (int i = 0; i < x.steps; i++) {
                const int step = before + i;
                const u32 k = bar_k(base, step);
                const u64 k_rows = operand(base + AT_K + step % STAGES * DKC * K_CHUNK_BYTES, 16);
                float s[BN / 2];
                barrier_wait(k, step / STAGES & 1);
                sync_some(1 + w, 256);
                products_begin();
#pragma unroll
                for (int n = 0; n < DK / 16; n++)
                    multiply<0>(s, q[n], further(k_rows, n / 4 * K_CHUNK_BYTES + n % 4 * 32), n > 0);
                products_close();
                arrive_some(1 + (w + 1) % WGS, 256);
                products_wait<0>();
                if (ARRIVES) barrier_arrive(k + 8);
#pragma unroll
                for (int j = 0; j < BN / 2; j++) s[j] = exp2_of(fmaf(s[j], a.scale2, -lse[j / 2 % 2]));
                float sum[SETS][MINE], last[SETS];
#pragma unroll
                for (int h = 0; h < SETS; h++) {
                    last[h] = 0.f;
#pragma unroll
                    for (int p = 0; p < MINE; p++) {
                        float key[4];
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            const int at = 8 * p + j / 2 * 4 + j % 2;
                            key[j] = SETS > 1 ? s[at + 2 * h] : s[at] + s[at + 2];
                        }
                        // Three of a block's keys lie in it with both halves, the last one with one, and with the other in the next.
                        sum[h][p] = fmaf(2.f, key[0] + key[1] + key[2], key[3]);
                        if (p > 0) sum[h][p] += last[h];
                        last[h] = key[3];
                    }
                    // The block before a lane's first one is the last one of the lane before, or of the tile before.
                    const float other = __shfl_sync(~0u, last[h], lane & ~3 | (t + 3) % 4);
                    sum[h][0] += t > 0 ? other : over[h];
                    over[h] = other;
                    sum_over_heads<LANES>(sum[h], g);
                    if (KEPT == 2)
                        __stcg((float2 *)(to[h] + i * BLOCKS), make_float2(sum[h][0], sum[h][1]));
                    else
                        __stcg(to[h] + i * BLOCKS, sum[h][0]);
                }
                // Not before a product took them: loads of matrices wait behind products, and an arrival does not wait for loads.
                if (i == 0 && ARRIVES) barrier_arrive(bar_q(base) + 8);
            }
            before += x.steps;
        }
        __syncwarp();
        if (ARRIVES) barrier_arrive(strip_bar);
    }
    // The last turn is nobody's.
    if (w == 0) sync_some(1, 256);
}

// Scores of blocks, from PARTS strips, go to `row` as integers, which order alike, for they are never negative; -1 for none. Blocks
// that differ by multiples of 32 are a lane's. Returns the lane's best.
DEVICE int gather_row(const float *strip, int limit, u32 row, int lane) {
    constexpr int AHEAD = 4 / PARTS;
    int best = -1;
    for (int first = 0; first < limit; first += 32 * AHEAD) {
        // All loads before the first store, which none may pass; as many as there are registers for.
        float x[AHEAD][PARTS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int j = 0; j < PARTS; j++)
                if (first + 32 * i < limit) x[i][j] = __ldcg(strip + j * PITCH + first + 32 * i + lane);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + 32 * i < limit) {
                const int block = first + 32 * i + lane;
                const float sum = PARTS > 1 ? x[i][0] + x[i][PARTS - 1] : x[i][0];
                const int score = block >= 1 && block < limit ? __float_as_int(sum) : -1;
                store_one(row + block * 4, __int_as_float(score));
                best = max(best, score);
            }
    }
    return best;
}

// Leaves the NTOP best of `n` <= 64 entries in their places, best first, and returns how many there are. An entry is a score and,
// below it, the complement of its block: the lower one of equals is the better one.
DEVICE int keep_best(u32 entries, int n, int lane) {
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
        if (lane + 32 * h < n && rank[h] < NTOP) store_long(entries + rank[h] * 8, mine[h]);
    __syncwarp();
    return min(n, NTOP);
}

// The best blocks of a row, best first, the lower one of equals: lane i has that of rank i, or -1.
DEVICE int choose(const float *strip, int limit, u32 row, int lane) {
    const u32 entries = row + (ROW - ENTRIES) * 4;
    const int best = gather_row(strip, limit, row, lane);
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
    int least = max(__reduce_max_sync(~0u, as_good >= NTOP ? best : -1), 0), n = 0;
    for (int block = lane; block - lane < limit; block += 32) {
        const int score = __float_as_int(load_one(row + block * 4));
        const u32 many = __ballot_sync(~0u, score >= least);
        if (score >= least)
            store_long(entries + (n + __popc(many & (1u << lane) - 1)) * 8, (u64)score << 32 | (u32)~block);
        n += __popc(many);
        // There is always room for 32 more.
        if (n > ENTRIES / 2 - 32) {
            n = keep_best(entries, n, lane);
            least = load_long(entries + (NTOP - 1) * 8) >> 32;
        }
    }
    n = keep_best(entries, n, lane);
    return lane < n ? (int)~(u32)load_long(entries + lane * 8) : -1;
}

DEVICE void choose_all(const Arguments &a, u32 base, int chooser, int lane) {
    const u32 row = base + AT_ROWS + chooser * ROW * 4;
    Work x;
    for (; x.find(a); x.next()) {
        const u32 bar = bar_strip(base, x.round);
        barrier_wait(bar, x.round / 2 & 1);
        const float *strip = x.strip(a);
        // The choosers go on where the last tile ended, so that each has as much to do.
        for (int i = (chooser + x.round * (CHOOSERS - 1) * TOKENS) % CHOOSERS; i < TOKENS; i += CHOOSERS) {
            const int t = x.t0 + i;
            if (t >= a.S) break;
            const int block = choose(strip + i * PARTS * PITCH, limit_of(t), row, lane);
            if (lane < NTOP) a.top[((long long)x.pair * a.S + t) * NTOP + lane] = block;
            if (block >= 0) atomicAdd(a.counts + (long long)x.pair * a.lists + t / a.span * a.blocks + block, 1);
            __syncwarp();
        }
        if (ARRIVES) barrier_arrive(bar + 8);
    }
}

extern "C" __global__ void __launch_bounds__(128 * (WGS + 1 + EXTRA), 1) scores(const __grid_constant__ Arguments a) {
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        prefetch_map(&a.q);
        prefetch_map(&a.k);
        barrier_init(bar_q(base), 1);
        barrier_init(bar_q(base) + 8, 4 * WGS * ARRIVALS);
        for (int i = 0; i < 2; i++) {
            barrier_init(bar_strip(base, i), 4 * WGS * ARRIVALS);
            barrier_init(bar_strip(base, i) + 8, CHOOSERS * ARRIVALS);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bar_k(base, i), 1);
            barrier_init(bar_k(base, i) + 8, 4 * WGS * ARRIVALS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (warp < 4) {
        give_registers<(EXTRA ? 48 : 56)>();
        if (threadIdx.x == 0) bring(a, base);
        if (warp > 0) choose_all(a, base, warp - 1, lane);
    } else if (warp < 4 * (WGS + 1)) {
        take_registers<(EXTRA ? 128 : WGS == 3 ? 152 : 224)>();
        consume(a, base, warp / 4 - 1);
    } else {
        give_registers<48>();
        choose_all(a, base, warp - 4 * (WGS + 1) + 3, lane);
    }
}
