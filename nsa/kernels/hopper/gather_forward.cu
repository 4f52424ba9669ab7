// Attention of the tokens that chose a block, over that block: a partial result and its log-sum-exp for each pair of token and slot.
//
// A work tile is a block of keys and up to TT tokens of one list that chose it, all heads of their group, taken 64 rows at a
// time. As many blocks of threads as processors walk over the work tiles, so that side by side run neighbours, whose queries
// are in the L2 cache. One warp brings queries by tensor maps, a box for each token, and keys and values of the next work tile
// while the present one is in use; WGS warpgroups take turns with the rows.
//
// Constants: DK, DV (multiples of 64), HPG (heads per group), NTOP, TT (pairs of a work tile), WGS, STAGES, HALF.

constexpr int BN = 64, DKC = DK / 64, DVC = DV / 64, TOKENS = 64 / HPG, ROWS = TOKENS * HPG;
constexpr int Q_BYTES = DKC * 8192, KEY_BYTES = (DKC + DVC) * 8192;
constexpr int AT_K = 0, AT_Q = AT_K + 2 * KEY_BYTES, AT_BARRIERS = AT_Q + STAGES * Q_BYTES;
// Each stage belongs to one warpgroup, which cannot take another one's rows for its own.
static_assert(STAGES % WGS == 0 && HPG <= 64, "sizes that are served");

struct Arguments {
    TensorMap q, k, v;
    const int *pairs, *offsets, *tile_offsets, *tile_block;
    void *o;     // [pairs of batch and group in this launch, n_pairs, HPG, DV]
    float *lse;  // the same without DV
    int S, H, G, blocks, lists, n_pairs, max_tiles, bg, bg_end;
    float scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

#include "lists.cuh"

// Barriers: for each of two work tiles keys and values there, and done with; for each stage rows there, and done with.
DEVICE u32 bar_keys(u32 base, int count) { return base + AT_BARRIERS + count % 2 * 16; }
DEVICE u32 bar_q(u32 base, int step) { return base + AT_BARRIERS + 32 + step % STAGES * 16; }

DEVICE void bring(const Arguments &a, u32 base, int lane) {
    constexpr int ROUNDS = (TOKENS * DKC + 31) / 32;
    int step = 0, count = 0;
    Work x(a);
    for (; x.find(a); x.next(), count++) {
        const u32 keys = bar_keys(base, count), at_keys = base + AT_K + count % 2 * KEY_BYTES;
        barrier_wait(keys + 8, count / 2 & 1 ^ 1);
        if (lane == 0) {
            barrier_expect(keys, KEY_BYTES);
            for (int c = 0; c < DKC + DVC; c++)
                copy_box(at_keys + c * 8192, c < DKC ? &a.k : &a.v, keys, (c < DKC ? c : c - DKC) * 64, x.block * BN, x.g, x.b);
        }
        for (int e = x.first; e < x.end; e += TOKENS, step++) {
            const u32 q = bar_q(base, step);
            int token[ROUNDS];
#pragma unroll
            for (int r = 0; r < ROUNDS; r++)  // Beyond the end the last token comes again.
                token[r] = x.pairs[min(e + (lane + 32 * r) / DKC, x.end - 1)] / NTOP;
            barrier_wait(q + 8, step / STAGES & 1 ^ 1);
            if (lane == 0) barrier_expect(q, ROWS * DK * 2);
            __syncwarp();
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                const int slot = (lane + 32 * r) / DKC, c = (lane + 32 * r) % DKC;
                if (slot < TOKENS)
                    copy_box(base + AT_Q + step % STAGES * Q_BYTES + c * 8192 + slot * HPG * 128, &a.q, q, c * 64, x.g * HPG,
                             token[r], x.b);
            }
        }
    }
}

DEVICE void consume(const Arguments &a, u32 base, int w) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    int before = 0, count = 0;
    Work x(a);
    for (; x.find(a); x.next(), count++) {
        const u32 keys = bar_keys(base, count), at_keys = base + AT_K + count % 2 * KEY_BYTES;
        const u64 k_rows = operand(at_keys, 16), v_across = operand(at_keys + DKC * 8192, 8192);
        barrier_wait(keys, count / 2 & 1);
        for (int i = (w + WGS - before % WGS) % WGS; i < x.steps; i += WGS) {
            const int step = before + i, e = x.first + i * TOKENS;
            const u32 q = bar_q(base, step);
            const u64 q_rows = operand(base + AT_Q + step % STAGES * Q_BYTES, 16);
            int pair[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = 16 * warp + g + 8 * h;
                pair[h] = row < ROWS && e + row / HPG < x.end ? x.pairs[e + row / HPG] : -1;
            }
            float s[BN / 2], o[DV / 2], scale[2];
            barrier_wait(q, step / STAGES & 1);
            products_begin();
#pragma unroll
            for (int k = 0; k < DK / 16; k++)
                multiply<0, 0>(s, further(q_rows, k / 4 * 8192 + k % 4 * 32), further(k_rows, k / 4 * 8192 + k % 4 * 32), k > 0);
            products_close();
            products_wait<0>();
            if (ARRIVES) barrier_arrive(q + 8);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float most = fmaxf(s[2 * h], s[2 * h + 1]), total = 0.f;
#pragma unroll
                for (int j = 1; j < BN / 8; j++) most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * a.scale2;
#pragma unroll
                for (int j = 0; j < BN / 8; j++)
#pragma unroll
                    for (int c = 2 * h; c < 2 * h + 2; c++) total += s[4 * j + c] = exp2_of(fmaf(s[4 * j + c], a.scale2, -most));
                total = sum_of_four(total);
                scale[h] = 1.f / total;
                const int head = (16 * warp + g + 8 * h) % HPG;
                if (pair[h] >= 0 && t == 0)
                    a.lse[((long long)(x.bg - a.bg) * a.n_pairs + pair[h]) * HPG + head] = most + log2f(total);
            }
            u32 p[BN / 16][4];
            as_operand<BN>(p, s);
            products_begin();
#pragma unroll
            for (int k = 0; k < BN / 16; k++) multiply<1>(o, p[k], further(v_across, k * 2048), k > 0);
            products_close();
            products_wait<0>();
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const long long row = ((long long)(x.bg - a.bg) * a.n_pairs + pair[h]) * HPG + (16 * warp + g + 8 * h) % HPG;
                store_row<DV>((u32 *)a.o + row * (DV / 2), o, h, t, scale[h], pair[h] >= 0);
            }
        }
        before += x.steps;
        __syncwarp();
        if (ARRIVES) barrier_arrive(keys + 8);
    }
}

extern "C" __global__ void __launch_bounds__(128 * (WGS + 1), 1) gather_forward(const __grid_constant__ Arguments a) {
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(bar_keys(base, i), 1);
            barrier_init(bar_keys(base, i) + 8, 4 * WGS * ARRIVALS);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bar_q(base, i), 1);
            barrier_init(bar_q(base, i) + 8, 4 * ARRIVALS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (warp < 4) {
        give_registers<24>();
        if (warp == 0) bring(a, base, lane);
    } else {
        take_registers<160>();
        consume(a, base, warp / 4 - 1);
    }
}
