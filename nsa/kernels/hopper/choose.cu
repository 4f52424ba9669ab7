// The best blocks of each token, from the sums of probabilities that the compressed branch leaves (strips.cuh).
//
// A warp takes a token of a group: it weighs the sums of its heads by their log-sum-exp, adds them up and keeps the best. As sums
// are rounded, blocks that might change places with the worst of the best get exact scores from queries and keys.
//
// Constants: DK (multiple of 32), HPG (heads per group, up to 32), L, D (compression, L = 2 * D), LS (tokens of a block, 4 * D), NTOP
// (up to 32), MOST (a 32nd of the most blocks), WARPS (of a block of threads), RESIDENT (blocks of threads on a
// processor), HALF.

#include "strips.cuh"

// A warp has the scores of a row and 64 entries of two words.
constexpr int ENTRIES = 128, ROW = 32 * MOST + ENTRIES, HEADS = (HPG + 7) / 8;
constexpr int PAD = HPG > 4 ? 8 : HPG > 2 ? 4 : HPG, AT_ONCE = 8 / PAD;
static_assert(HPG <= 32 && LS == 4 * D && L == 2 * D && NTOP <= 32, "sizes that are served");

struct Arguments {
    const unsigned char *strips;
    const u16 *q, *k;   // queries; compressed keys [B, n_keys, G, DK]
    const float *lse;   // [B, S, H]
    int *top, *counts;  // [B * G, S, NTOP]; [B * G, lists]
    long long q_strides[3];
    int S, H, G, n_keys, blocks, span, lists, pairs, pair, first, end;  // as dense_forward.cu has them
    float scale2;
};

extern __shared__ __align__(16) unsigned char shared[];

// Blocks below the two of a token itself compete, but for the first one.
DEVICE int limit_of(int t) { return t / LS - 1; }

// A token of a group.
struct Token {
    int pair, b, g, t;
};

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

// Leaves up to KEEP of the best blocks of `row` among the entries, best first, the lower one of equals, and returns how many: all
// whose score is at least `cut` of the worst of NTOP. Scores are integers, which order alike, for they are never negative; -1 is no
// block's. `best`: the best score of a lane's blocks, which are as far apart as there are lanes.
template <int KEEP, class Cut> DEVICE int keep(u32 row, int best, int limit, int lane, Cut cut) {
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
DEVICE int kept(u32 row, int n, int lane) { return lane < n ? (int)~(u32)load_long(row + (ROW - ENTRIES) * 4 + lane * 8) : -1; }

// What a lane has of a record: of each of its heads, g % PAD + 8 * k, eight blocks' sums, the reference and half the last key's
// probability. Few heads leave room for AT_ONCE records at a time.
struct Part {
    uint4 sums[HEADS];
    float2 head[HEADS];

    DEVICE void load(const unsigned char *record, int lane) {
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const int h = min(lane / 4 % PAD + 8 * k, HPG - 1);
            sums[k] = __ldcs((const uint4 *)(record + h * HEAD_BYTES + lane % 4 * 16));
            head[k] = __ldcs((const float2 *)(record + HPG * HEAD_BYTES + h * 8));
        }
    }
};

// Scores of a token's blocks go to `row`; returns the lane's best. `lse` of the lane's heads; `weights`: the most that a sum of 1
// weighs, over heads.
DEVICE int gather_row(const unsigned char *strip, int limit, const float (&lse)[HEADS], u32 row, int lane, float &weights) {
    const int g = lane / 4, t = lane % 4, record = g / PAD, last = max(limit - 1, 0) / 32;
    int best = -1;
    float carried = 0.f;
    Part now, then;
    weights = 0.f;
    if (limit > 0) then.load(strip + (long long)min(record, last) * RECORD, lane);
    for (int first = record; 32 * (first - record) < limit; first += AT_ONCE) {
        now = then;
        if (32 * (first - record + AT_ONCE) < limit) then.load(strip + (long long)min(first + AT_ONCE, last) * RECORD, lane);
        float weight[HEADS], sum[8], all = 0.f, over = 0.f;
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            weight[k] = exp2_of(now.head[k].x - lse[k]);
            all += weight[k];
            over = fmaf(weight[k], now.head[k].y, over);
        }
        weights = fmaxf(weights, all);
        // What the last key of a record gives to the next one's first block.
        const float before = AT_ONCE > 1 ? __shfl_sync(~0u, over, lane - 4 * PAD & 31) : over;
        over = AT_ONCE > 1 && record > 0 ? before : carried;
        carried = before;
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] = fmaf(all, -ADDED, j == 0 && t == 0 ? 2.f * over : 0.f);
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const u32 x[4] = {now.sums[k].x, now.sums[k].y, now.sums[k].z, now.sums[k].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 y = decode(x[j]);
                sum[2 * j] = fmaf(weight[k], y.x, sum[2 * j]);
                sum[2 * j + 1] = fmaf(weight[k], y.y, sum[2 * j + 1]);
            }
        }
        // Over heads, so that a lane is left with AT_ONCE of its eight blocks.
#pragma unroll
        for (int bit = PAD / 2, n = 4; bit > 0; bit /= 2, n /= 2)
#pragma unroll
            for (int j = 0; j < n; j++) {
                const float mine = g & bit ? sum[j + n] : sum[j], other = g & bit ? sum[j] : sum[j + n];
                sum[j] = mine + __shfl_xor_sync(~0u, other, 4 * bit);
            }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int block = 32 * first + 8 * t + g % PAD * AT_ONCE + j;
            const int score = block >= 1 && block < limit ? __float_as_int(fmaxf(sum[j], 0.f)) : -1;
            store_one(row + block * 4, __int_as_float(score));
            best = max(best, score);
        }
    }
#pragma unroll
    for (int bit = 4; bit > 0; bit /= 2) {
        const float other = __shfl_xor_sync(~0u, weights, 4 * bit);
        weights = bit >= PAD ? fmaxf(weights, other) : weights + other;
    }
    return best;
}

DEVICE void multiply_small(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if HALF
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The score of a block from queries and keys: the block's four keys, and the one before them. The order in which columns are
// summed is the same for both operands, and any.
DEVICE float exact(const Arguments &a, const Token &x, int block, const float (&lse)[HEADS], int lane) {
    const int g = lane / 4, u = lane % 4;
    const u16 *q = a.q + x.b * a.q_strides[0] + x.t * a.q_strides[1] + x.g * HPG * a.q_strides[2] + 8 * u;
    const uint4 *k = (const uint4 *)(a.k + (((long long)x.b * a.n_keys + 4 * block - 4 + g) * a.G + x.g) * DK + 8 * u);
    // Of eight keys the last five count: by one for a half, by two for both.
    const float weight[2] = {u > 1 ? 2.f : 0.f, u == 2 ? 2.f : u > 0 ? 1.f : 0.f};
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < HEADS; i += 2) {
        const uint4 *rows[2];
#pragma unroll
        for (int h = 0; h < 2; h++) rows[h] = (const uint4 *)(q + min(g + 8 * (i + h), HPG - 1) * a.q_strides[2]);
        float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 2
        for (int n = 0; n < DK / 32; n++) {
            const uint4 q0 = rows[0][4 * n], q1 = rows[1][4 * n], y = k[4 * n];
            multiply_small(c, q0.x, q1.x, q0.y, q1.y, y.x, y.y);
            multiply_small(c, q0.z, q1.z, q0.w, q1.w, y.z, y.w);
        }
#pragma unroll
        for (int h = 0; h < 2 && i + h < HEADS; h++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float p = exp2_of(fmaf(c[2 * h + j], a.scale2, -lse[i + h]));
                sum = g < PAD ? fmaf(weight[j], p, sum) : sum;
            }
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    return sum;
}

// The best blocks of a token, best first, the lower one of equals: lane i has that of rank i, or -1.
DEVICE int best_blocks(const Arguments &a, const Token &x, u32 row, int lane) {
    const int limit = limit_of(x.t);
    float lse[HEADS], weights;
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        const int head = lane / 4 % PAD + 8 * k;
        lse[k] = head < HPG ? a.lse[((long long)x.b * a.S + x.t) * a.H + x.g * HPG + head] : __int_as_float(0x7f800000);
    }
    const u32 entries = row + (ROW - ENTRIES) * 4;
    const unsigned char *strip = a.strips + strip_of(x.pair - a.pair, x.t, a.first, a.end);
    const int best = gather_row(strip, limit, lse, row, lane, weights);
    // A sum, ADDED to it, is rounded to 13 bits: a score is off by 2^-13 of it, and of what was added. Two may differ by both.
    const float apart = 2.2f / 8192 * ADDED * weights;
    const auto nearly = [=](int score) { return max(__float_as_int(fmaf(__int_as_float(score), 1.f - 2.2f / 8192, -apart)), 0); };
    const int n = keep<32>(row, best, limit, lane, nearly);
    // All that compete.
    if (limit - 1 <= NTOP) return kept(row, n, lane);
    u64 mine = lane < n ? load_long(entries + lane * 8) : 0;
    const int worst = __shfl_sync(~0u, (int)(mine >> 32), NTOP - 1);
    const int low = nearly(worst), high = __float_as_int(fmaf(__int_as_float(worst), 1.f + 2.2f / 8192, apart));
    const int near = __popc(__ballot_sync(~0u, lane < n && (int)(mine >> 32) >= low));
    if (near == NTOP && NTOP < 32) return kept(row, NTOP, lane);
    if (near < 32) {
        for (u32 some = __ballot_sync(~0u, lane < near && (int)(mine >> 32) <= high); some; some &= some - 1) {
            const int other = __ffs(some) - 1;
            const float found = exact(a, x, ~__shfl_sync(~0u, (u32)mine, other), lse, lane);
            if (lane == other) mine = (u64)__float_as_uint(found) << 32 | (u32)mine;
        }
        __syncwarp();
        if (lane < near) store_long(entries + lane * 8, mine);
        return kept(row, keep_best<NTOP>(entries, near, lane), lane);
    }
    // As many as are not kept, as where keys are equal: all that may change places get exact scores, and all are looked at again.
    int again = -1;
    __syncwarp();
    for (int block = lane; block - lane < limit; block += 32) {
        int score = __float_as_int(load_one(row + block * 4));
        for (u32 some = __ballot_sync(~0u, score >= low && score <= high); some; some &= some - 1) {
            const int other = __ffs(some) - 1;
            const float found = exact(a, x, block - lane + other, lse, lane);
            if (lane == other) score = __float_as_int(found);
        }
        store_one(row + block * 4, __int_as_float(score));
        again = max(again, score);
    }
    __syncwarp();
    return kept(row, keep<NTOP>(row, again, limit, lane, [](int score) { return score; }), lane);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) choose(const __grid_constant__ Arguments a) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tokens = a.end - a.first;
    const u32 row = shared_address(shared) + warp * ROW * 4;
    // The last tokens, which have most to read, first.
    for (int i = blockIdx.x * WARPS + warp; i < tokens * a.pairs; i += gridDim.x * WARPS) {
        const int pair = a.pair + i % a.pairs, t = a.end - 1 - i / a.pairs;
        const Token x = {pair, pair / a.G, pair % a.G, t};
        const int block = best_blocks(a, x, row, lane);
        if (lane < NTOP) a.top[((long long)pair * a.S + t) * NTOP + lane] = block;
        if (block >= 0) atomicAdd(a.counts + (long long)pair * a.lists + t / a.span * a.blocks + block, 1);
        __syncwarp();
    }
}
