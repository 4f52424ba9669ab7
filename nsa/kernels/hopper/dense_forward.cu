// The compressed branch's forward pass: output and base-2 log-sum-exp over the visible compressed tokens.
//
// A work tile is ROWS rows, the heads of a group times neighbouring tokens, and as many blocks of threads as processors walk
// over the work tiles, longest first. One warp brings queries, keys and values by tensor maps; each of WGS warpgroups takes
// 64 rows. It issues the next keys' product beside that of the present values, and makes probabilities while both
// run; warpgroups issue their products in turns (TURNS), so that one makes probabilities while another's products run.
//
// Where blocks are to be chosen (LEAVES), keys come in an order in which neighbouring ones are a lane's (column 16 * p + 8 * h + 2 * t
// + i of BN is key BN / 4 * t + 4 * p + 2 * h + i), so that a lane sums the probabilities of a block, and leaves them in `strips`:
// choose.cu takes them from there, and no product is made twice.
//
// Constants: DK, DV (64, 128, and 192 for DK), HPG (heads per group), L, D (compression), WGS (2 or 3), BN (keys of a tile,
// a multiple of 16; 128 with LEAVES), STAGES, QUERIES (work tiles whose queries there is room for: 1 or 2), TURNS, LEAVES, HALF.

constexpr int BM = 64 * WGS, DKC = DK / 64, DVC = DV / 64, TOKENS = BM / HPG, ROWS = TOKENS * HPG;
constexpr int Q_CHUNK_BYTES = BM * 128, K_CHUNK_BYTES = BN * 128;
constexpr int Q_BYTES = DKC * Q_CHUNK_BYTES, AT_Q = 0, AT_K = AT_Q + QUERIES * Q_BYTES, AT_V = AT_K + STAGES * DKC * K_CHUNK_BYTES;
constexpr int AT_BARRIERS = AT_V + STAGES * DVC * K_CHUNK_BYTES;
static_assert(BN % 16 == 0 && TOKENS > 0 && (WGS == 2 || WGS == 3), "tiles of whole products");

struct Arguments {
    TensorMap q, k, v;
    void *o;     // [B, S, H, DV]
    float *lse;  // [B, S, H]
    unsigned char *strips;
    int S, H, G, bg, tiles, items, pair, first, end;  // pairs from `pair` on, `bg` of them, and their tokens first .. end
    float scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

// Compressed tokens that a query sees.
DEVICE int seen_by(int t) { return t + 1 >= L ? (t + 1 - L) / D + 1 : 0; }

constexpr bool BY_LANE = LEAVES;

#if LEAVES
#include "strips.cuh"

// Where a lane leaves what one of its rows gives to blocks.
struct Left {
    unsigned char *sums, *reference;
    int records;

    // None for a token that is not below `end`.
    DEVICE void find(const Arguments &a, int pair, int token, int end, int head) {
        const int t = threadIdx.x % 4;
        unsigned char *strip = a.strips + strip_of(pair, token, a.first, a.end);
        sums = strip + head * HEAD_BYTES + t * 16;
        reference = strip + HPG * HEAD_BYTES + head * 8;
        records = token < end ? records_of(token) : 0;
    }
};

// What a lane's two rows give to its eight blocks of a tile, and half the probability of its last key.
struct Sums {
    float sum[2][8], last[2];

    // From probabilities `s`, which are added to `total`.
    DEVICE void take(const float (&s)[BN / 2], float (&total)[2]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float all = 0.f;
#pragma unroll
            for (int p = 0; p < 8; p++) {
                // Three of a block's keys lie in it with both halves, the last one with one, and with the other in the next block.
                const int at = 8 * p + 2 * h;
                const float three = s[at] + s[at + 1] + s[at + 4];
                sum[h][p] = fmaf(2.f, three, p > 0 ? s[at + 5] + s[at - 3] : s[at + 5]);
                all += sum[h][p];
            }
            // A product: for a copy of what the next scores overwrite, the assembler would have them wait.
            last[h] = .5f * s[61 + 2 * h];
            total[h] += fmaf(.5f, all, last[h]);
        }
    }

    // Leaves them for the blocks of keys BN * `tile` and on; relative to `m`.
    DEVICE void leave(const float (&m)[2], int tile, const Left (&left)[2]) {
        const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            // The key before the lane's first one is the last one of the lane before, or of the record before.
            const float before = __shfl_sync(~0u, last[h], lane & ~3 | (t + 3) % 4);
            sum[h][0] = fmaf(2.f, t > 0 ? before : 0.f, sum[h][0]);
            u32 r[4];
#pragma unroll
            for (int i = 0; i < 4; i++) r[i] = encode(sum[h][2 * i] + ADDED, sum[h][2 * i + 1] + ADDED);
            put_four(left[h].sums + (long long)tile * RECORD, r, tile < left[h].records);
            put_two(left[h].reference + (long long)tile * RECORD, m[h], last[h], t == 3 && tile < left[h].records);
        }
    }
};
#else
struct Left {
    DEVICE void find(const Arguments &, int, int, int, int) {}
};
struct Sums {
    DEVICE void take(const float (&)[BN / 2], float (&)[2]) {}
    DEVICE void leave(const float (&)[2], int, const Left (&)[2]) {}
};
constexpr int LIFT = 0, SLACK = 8;
#endif

// A work tile, and the next one of this block of threads: every other round runs backwards, so that none gets all the long ones.
struct Work {
    int round, pair, b, g, t0, steps;

    DEVICE Work() : round(0) {}
    DEVICE bool find(const Arguments &a) {
        const int item = round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (item >= a.items) return false;
        pair = item % a.bg;
        b = (a.pair + pair) / a.G;
        g = (a.pair + pair) % a.G;
        t0 = a.first + (a.tiles - 1 - item / a.bg) * TOKENS;
        steps = (seen_by(min(t0 + TOKENS, a.end) - 1) + BN - 1) / BN;
        return true;
    }
    DEVICE void next() { round++; }
};

// Barriers: for each of QUERIES queries there and done with; for each stage keys there and done with, values there and done with.
DEVICE u32 bar_q(u32 base, int count) { return base + AT_BARRIERS + count % QUERIES * 16; }
DEVICE u32 bar_k(u32 base, int step) { return base + AT_BARRIERS + QUERIES * 16 + step % STAGES * 32; }
DEVICE u32 bar_v(u32 base, int step) { return bar_k(base, step) + 16; }
DEVICE int phase_of(int step) { return step / STAGES & 1; }

// 64 columns from `column` of keys or values `n0` and on.
DEVICE void copy_keys(u32 to, const TensorMap *map, u32 bar, int column, int dim, int n0, const Work &x) {
    if (BY_LANE)
        copy_kept(to, map, bar, x.g * dim + column, 0, n0 / (BN / 4), 0, x.b);
    else
        copy_box(to, map, bar, column, n0, x.g, x.b);
}

DEVICE void bring(const Arguments &a, u32 base) {
    int before = 0, count = 0;
    Work x;
    for (; x.find(a); x.next()) {
        if (!x.steps) continue;
        const u32 q = bar_q(base, count), to = base + AT_Q + count % QUERIES * Q_BYTES;
        barrier_wait(q + 8, count / QUERIES & 1 ^ 1);
        barrier_expect(q, ROWS * DK * 2);
        for (int c = 0; c < DKC; c++) copy_box(to + c * Q_CHUNK_BYTES, &a.q, q, c * 64, x.g * HPG, x.t0, x.b);
        count++;
        // Values come a step after their keys, as they are asked for.
        for (int i = 0; i <= x.steps; i++) {
            if (i < x.steps) {
                const int step = before + i, stage = step % STAGES;
                const u32 k = bar_k(base, step);
                barrier_wait(k + 8, phase_of(step) ^ 1);
                barrier_expect(k, DKC * K_CHUNK_BYTES);
                for (int c = 0; c < DKC; c++)
                    copy_keys(base + AT_K + (stage * DKC + c) * K_CHUNK_BYTES, &a.k, k, c * 64, DK, (x.steps - 1 - i) * BN, x);
            }
            if (i > 0) {
                const int step = before + i - 1, stage = step % STAGES;
                const u32 v = bar_v(base, step);
                barrier_wait(v + 8, phase_of(step) ^ 1);
                barrier_expect(v, DVC * K_CHUNK_BYTES);
                for (int c = 0; c < DVC; c++)
                    copy_keys(base + AT_V + (stage * DVC + c) * K_CHUNK_BYTES, &a.v, v, c * 64, DV, (x.steps - i) * BN, x);
            }
        }
        before += x.steps;
    }
}

DEVICE void scores(float (&s)[BN / 2], u64 q_rows, u32 base, int step) {
    const u64 k_rows = operand(base + AT_K + step % STAGES * DKC * K_CHUNK_BYTES, 16);
#pragma unroll
    for (int i = 0; i < DK / 16; i++)
        multiply<0, 0>(s, further(q_rows, i / 4 * Q_CHUNK_BYTES + i % 4 * 32), further(k_rows, i / 4 * K_CHUNK_BYTES + i % 4 * 32),
                       i > 0);
    products_close();
}

DEVICE void add_values(float (&o)[DV / 2], const u32 (&p)[BN / 16][4], u32 base, int step) {
    const u64 v_across = operand(base + AT_V + step % STAGES * DVC * K_CHUNK_BYTES, K_CHUNK_BYTES);
#pragma unroll
    for (int i = 0; i < BN / 16; i++) multiply<1>(o, p[i], further(v_across, i * 2048), 1);
    products_close();
}

DEVICE void consume(const Arguments &a, u32 base, int w) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    const int slot[2] = {(64 * w + 16 * warp + g) / HPG, (64 * w + 16 * warp + g + 8) / HPG};
    const int head[2] = {(64 * w + 16 * warp + g) % HPG, (64 * w + 16 * warp + g + 8) % HPG};
    int before = 0, count = 0;
    if (TURNS && w == 0) arrive_some(1, 256);
    Work x;
    for (; x.find(a); x.next()) {
        float o[DV / 2], s[BN / 2], m[2] = {-1e30f, -1e30f}, total[2] = {0.f, 0.f}, faded[2];
        u32 p[BN / 16][4];
#pragma unroll
        for (int i = 0; i < DV / 2; i++) o[i] = 0.f;
        if (x.steps) {
            const int own = (BY_LANE ? BN / 4 : 2) * t;  // first key of this lane
            const int seen[2] = {seen_by(x.t0 + slot[0]) - own, seen_by(x.t0 + slot[1]) - own}, fewest = seen_by(x.t0);
            Left left[2];
            Sums sums;
#pragma unroll
            for (int h = 0; h < 2; h++)
                left[h].find(a, x.pair, x.t0 + slot[h], slot[h] < TOKENS ? a.end : 0, head[h]);
            const u32 q = bar_q(base, count);
            const u64 q_rows = operand(base + AT_Q + count % QUERIES * Q_BYTES + w * 8192, 16);
            int n0 = (x.steps - 1) * BN;
            barrier_wait(q, count / QUERIES & 1);
            barrier_wait(bar_k(base, before), phase_of(before));
            products_begin();
            scores(s, q_rows, base, before);
            products_wait<0>();
            if (ARRIVES) {
                barrier_arrive(bar_k(base, before) + 8);
                if (x.steps == 1) barrier_arrive(q + 8);
            }
            hide<BN, BY_LANE>(s, n0, seen);
            soften<BN, LIFT, SLACK, !LEAVES>(s, m, total, faded, a.scale2);
            sums.take(s, total);
            as_operand<BN>(p, s);
            for (int i = 1; i < x.steps; i++) {
                const int step = before + i;
                n0 -= BN;
                barrier_wait(bar_k(base, step), phase_of(step));
                sums.leave(m, n0 / BN + 1, left);
                if (TURNS) sync_some(1 + w, 256);
                products_begin();
                scores(s, q_rows, base, step);
                barrier_wait(bar_v(base, step - 1), phase_of(step - 1));
                products_begin();
                add_values(o, p, base, step - 1);
                if (TURNS) arrive_some(1 + (w + 1) % WGS, 256);
                products_wait<1>();
                if (ARRIVES) {
                    barrier_arrive(bar_k(base, step) + 8);
                    if (i == x.steps - 1) barrier_arrive(q + 8);
                }
                if (n0 + BN > fewest) hide<BN, BY_LANE>(s, n0, seen);
                const bool grows = soften<BN, LIFT, SLACK, !LEAVES>(s, m, total, faded, a.scale2);
                sums.take(s, total);
                after(total[0] + total[1]);
                products_wait<0>();
                if (ARRIVES) barrier_arrive(bar_v(base, step - 1) + 8);
                as_operand<BN>(p, s);
                if (grows) fade<DV>(o, faded);
            }
            before += x.steps;
            count++;
            barrier_wait(bar_v(base, before - 1), phase_of(before - 1));
            products_begin();
            add_values(o, p, base, before - 1);
            sums.leave(m, 0, left);
            products_wait<0>();
            if (ARRIVES) barrier_arrive(bar_v(base, before - 1) + 8);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = sum_of_four(total[h]);
            const bool some = sum > 0.f, inside = slot[h] < TOKENS && x.t0 + slot[h] < a.end;
            const long long row = ((long long)x.b * a.S + x.t0 + slot[h]) * a.H + x.g * HPG + head[h];
            if (inside && t == 0) a.lse[row] = some ? m[h] + log2f(sum) : -1e30f;
            store_row<DV>((u32 *)a.o + row * (DV / 2), o, h, t, some ? 1.f / sum : 0.f, inside);
        }
    }
    // The last arrival is nobody's turn.
    if (TURNS && w == 0) sync_some(1, 256);
}

extern "C" __global__ void __launch_bounds__(128 * (WGS + 1), 1) dense_forward(const __grid_constant__ Arguments a) {
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        prefetch_map(&a.q);
        prefetch_map(&a.k);
        prefetch_map(&a.v);
        for (int i = 0; i < QUERIES; i++) {
            barrier_init(bar_q(base, i), 1);
            barrier_init(bar_q(base, i) + 8, 4 * WGS * ARRIVALS);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bar_k(base, i), 1);
            barrier_init(bar_k(base, i) + 8, 4 * WGS * ARRIVALS);
            barrier_init(bar_v(base, i), 1);
            barrier_init(bar_v(base, i) + 8, 4 * WGS * ARRIVALS);
        }
        barrier_init_done();
    }
    __syncthreads();
    // The assembler takes notice of the larger count where it comes first.
    if (warp >= 4) {
        take_registers<(WGS == 2 ? 240 : 160)>();
        consume(a, base, warp / 4 - 1);
    } else {
        give_registers<24>();
        if (threadIdx.x == 0) bring(a, base);
    }
}
