// Attention of the tokens that chose a block, over that block: a partial result and its log-sum-exp for each pair of token and slot.
//
// A work tile is a block of keys and up to TT tokens of one list that chose it, all heads of their group, taken 64 rows at a
// time. As many blocks of threads as processors walk over the work tiles, so that side by side run neighbours, whose queries
// are in the L2 cache. One warp brings queries by tensor maps, a box for each token, and keys and values of the next work tile
// while the present one is in use; WGS warpgroups take turns with the rows.
//
// Constants: DK, DV (multiples of 64), HPG (heads per group), NTOP, TT (pairs of a work tile), WGS, STAGES, WHOLE (whether a box is
// all of a token's row, eight heads' 64 columns after the other, not 64 columns of it), HALF.

constexpr int BN = 64, DKC = DK / 64, DVC = DV / 64, TOKENS = 64 / HPG, ROWS = TOKENS * HPG;
// Boxes of a token, bytes of each, bytes from 8 rows to the next, and from 64 columns to the next.
constexpr int Q_BOXES = WHOLE ? 1 : DKC, Q_BOX = WHOLE ? HPG * DKC * 128 : HPG * 128, Q_APART = WHOLE ? DKC * 1024 : 1024;
constexpr int O_BOXES = WHOLE ? 1 : DVC, O_BOX = WHOLE ? HPG * DVC * 128 : HPG * 128, O_APART = WHOLE ? DVC * 1024 : 1024;
constexpr int CHUNK = WHOLE ? 1024 : 8192;
constexpr int Q_BYTES = DKC * 8192, KEY_BYTES = (DKC + DVC) * 8192;
constexpr int AT_K = 0, AT_Q = AT_K + 2 * KEY_BYTES, AT_O = AT_Q + STAGES * Q_BYTES;
constexpr int AT_LSE = AT_O + WGS * DVC * 8192, AT_BARRIERS = AT_LSE + WGS * 256;
// Each stage belongs to one warpgroup, which cannot take another one's rows for its own.
static_assert(STAGES % WGS == 0 && WGS < 4 && HPG <= 64 && !(WHOLE && HPG % 8), "sizes that are served");

struct Arguments {
    TensorMap q, k, v, parts;  // parts [1, pairs of this launch * n_pairs, HPG, DV]
    const int *pairs, *offsets, *tile_offsets, *tile_block;
    float *lse;  // [pairs of batch and group in this launch, n_pairs, HPG]
    int S, H, G, blocks, lists, n_pairs, max_tiles, list_from, list_end, bg, bg_end;
    float scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

#include "lists.cuh"

// Barriers: for each of two work tiles keys and values there, and done with; for each stage rows there, and done with.
DEVICE u32 bar_keys(u32 base, int count) { return base + AT_BARRIERS + count % 2 * 16; }
DEVICE u32 bar_q(u32 base, int step) { return base + AT_BARRIERS + 32 + step % STAGES * 16; }

DEVICE void bring(const Arguments &a, u32 base, int lane) {
    int step = 0, count = 0;
    TwoWorks x(a);
    Coming<Q_BOXES> coming;
    for (coming.begin(x, lane); x.more; x.next(a), count++) {
        const u32 keys = bar_keys(base, count), at_keys = base + AT_K + count % 2 * KEY_BYTES;
        const Work &now = x.now;
        barrier_wait(keys + 8, count / 2 & 1 ^ 1);
        if (lane == 0) {
            barrier_expect(keys, KEY_BYTES);
            for (int c = 0; c < DKC + DVC; c++)
                copy_box(at_keys + c * 8192, c < DKC ? &a.k : &a.v, keys, (c < DKC ? c : c - DKC) * 64, now.block * BN, now.g, now.b);
        }
        coming.fill(x, lane);
        for (int i = 0; i < now.steps; i++, step++) {
            const u32 q = bar_q(base, step), tile = base + AT_Q + step % STAGES * Q_BYTES;
            const Boxes<Q_BOXES> boxes = coming.take(x, i, lane);
            barrier_wait(q + 8, step / STAGES & 1 ^ 1);
            if (lane == 0) barrier_expect(q, ROWS * DK * 2);
            __syncwarp();
            boxes.bring(now, lane, [&](int slot, int c, int token) {
                if (WHOLE)
                    copy_kept(tile + slot * Q_BOX, &a.q, q, 0, 0, 0, (token * a.H + now.g * HPG) / 8, now.b);
                else
                    copy_kept(tile + c * CHUNK + slot * Q_BOX, &a.q, q, c * 64, now.g * HPG, token, now.b);
            });
        }
    }
}

// Brings what warpgroup `w` leaves to global memory: boxes of a token's heads, and two rows' log-sum-exp a lane.
DEVICE void bring_out(const Arguments &a, u32 base, int w, int lane) {
    constexpr int ROUNDS = (TOKENS * O_BOXES + 31) / 32;
    const u32 lse = base + AT_LSE + w * 256 + lane * 4;
    int before = 0;
    TwoWorks two(a);
    for (; two.more; before += two.now.steps, two.next(a)) {
        const Work &x = two.now;
        const long long first = (long long)(x.bg - a.bg) * a.n_pairs;
        for (int i = (w + WGS - before % WGS) % WGS; i < x.steps; i += WGS) {
            const int e = x.first + i * TOKENS;
            int of_box[ROUNDS], of_row[2];
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) of_box[r] = x.pairs[min(e + (lane + 32 * r) / O_BOXES, x.end - 1)];
#pragma unroll
            for (int r = 0; r < 2; r++) of_row[r] = x.pairs[min(e + (lane + 32 * r) / HPG, x.end - 1)];
            __syncwarp();
            arrive_some(1 + w, 160);
            sync_some(1 + WGS + w, 160);
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                const int slot = (lane + 32 * r) / O_BOXES, c = (lane + 32 * r) % O_BOXES;
                const u32 from = base + AT_O + w * DVC * 8192 + c * CHUNK + slot * O_BOX;
                if (slot >= TOKENS || e + slot >= x.end) continue;
                if (WHOLE)
                    put_box(&a.parts, from, 0, 0, 0, (first + of_box[r]) * HPG / 8, 0);
                else
                    put_box(&a.parts, from, c * 64, 0, first + of_box[r], 0);
            }
            put_close();
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = lane + 32 * r;
                if (row < ROWS && e + row / HPG < x.end) a.lse[(first + of_row[r]) * HPG + row % HPG] = load_one(lse + r * 128);
            }
            put_read();
        }
    }
    put_done();
}

DEVICE void consume(const Arguments &a, u32 base, int w) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    int before = 0, count = 0;
    TwoWorks two(a);
    for (; two.more; two.next(a), count++) {
        const Work &x = two.now;
        const u32 keys = bar_keys(base, count), at_keys = base + AT_K + count % 2 * KEY_BYTES;
        const u64 k_rows = operand(at_keys, 16), v_across = operand(at_keys + DKC * 8192, 8192);
        barrier_wait(keys, count / 2 & 1);
        for (int i = (w + WGS - before % WGS) % WGS; i < x.steps; i += WGS) {
            const int step = before + i;
            const u32 q = bar_q(base, step);
            const u64 q_rows = operand(base + AT_Q + step % STAGES * Q_BYTES, 16, Q_APART);
            float s[BN / 2], o[DV / 2], scale[2];
            barrier_wait(q, step / STAGES & 1);
            products_begin();
#pragma unroll
            for (int k = 0; k < DK / 16; k++)
                multiply<0, 0>(s, further(q_rows, k / 4 * CHUNK + k % 4 * 32), further(k_rows, k / 4 * 8192 + k % 4 * 32), k > 0);
            products_close();
            products_wait<0>();
            if (ARRIVES) barrier_arrive(q + 8);
            float most[2], total[2] = {0.f, 0.f};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                most[h] = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
                for (int j = 1; j < BN / 8; j++) most[h] = fmaxf(most[h], fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
            }
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
                for (int h = 0; h < 2; h++) most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], lanes));
#pragma unroll
            for (int h = 0; h < 2; h++) most[h] *= a.scale2;
#pragma unroll
            for (int j = 0; j < BN / 2; j++) total[j / 2 % 2] += s[j] = exp2_of(fmaf(s[j], a.scale2, -most[j / 2 % 2]));
            u32 p[BN / 16][4];
            as_operand<BN>(p, s);
            products_begin();
#pragma unroll
            for (int k = 0; k < BN / 16; k++) multiply<1>(o, p[k], further(v_across, k * 2048), k > 0);
            products_close();
            // While these run: no sum is less than 1.
#pragma unroll
            for (int h = 0; h < 2; h++) {
                total[h] = sum_of_four(total[h]);
                scale[h] = __fdividef(1.f, total[h]);
            }
            sync_some(1 + w, 160);
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (t == 0) store_one(base + AT_LSE + w * 256 + (16 * warp + g + 8 * h) * 4, most[h] + __log2f(total[h]));
            products_wait<0>();
            const u32 to = base + AT_O + w * DVC * 8192 + (2 * warp + lane / 8 % 2) * O_APART + lane % 8 * 128 + ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
            for (int j = 0; j < DV / 16; j++) {
                const int i = 8 * j;
                store_matrices((to ^ (j % 4 << 5)) + j / 4 * CHUNK, pack(o[i] * scale[0], o[i + 1] * scale[0]),
                               pack(o[i + 2] * scale[1], o[i + 3] * scale[1]), pack(o[i + 4] * scale[0], o[i + 5] * scale[0]),
                               pack(o[i + 6] * scale[1], o[i + 7] * scale[1]));
            }
            fence_async();
            arrive_some(1 + WGS + w, 160);
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
        if (warp == 0) bring(a, base, lane);
        if (warp > 0 && warp <= WGS) bring_out(a, base, warp - 1, lane);
    } else {
        consume(a, base, warp / 4 - 1);
    }
}
